#!/usr/bin/env bash
# usage: setup.sh VENV
# The real SGLang 0.5.23 HTTP server in a virtual environment of its own, on an x86_64 machine without a GPU, with
# Python 3.11: about 80 s and 2.8 GB the first time. A stamp names what was installed; a second call returns at once,
# and an environment whose set-up was interrupted, or whose requirements changed, is made again from nothing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=${1:?usage: setup.sh VENV}
torch=2.13.0 torchvision=0.28.0 sglang=0.5.23

stamp=$venv/.sglang-ready
files=$(cat "$here/requirements.txt" "$here/_tv_cpu_shim.py" "$here/sgl_kernel.py" | sha256sum)
wanted="torch $torch, torchvision $torchvision, sglang $sglang, ${files%% *}"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then exit 0; fi

step() { echo "[real SGLang] $(date +%H:%M:%S) $*"; }
pip() { "$venv/bin/python" -m pip install --quiet --quiet --disable-pip-version-check "$@"; }

python=
for candidate in "${PYTHON:-}" python3.11 python3 python; do
  if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  echo "setup.sh: the SGLang $sglang wheel is for Python 3.11, and none was found; name one with PYTHON=..." >&2
  exit 1
fi

step "1/4 virtual environment in $venv"
"$python" -m venv --clear "$venv"
step "2/4 torch $torch"
pip "torch==$torch"
step "3/4 what SGLang imports"
pip "torch==$torch" -r "$here/requirements.txt"
step "4/4 sglang $sglang"
pip --no-deps "torchvision==$torchvision" # its Python part only, see _tv_cpu_shim.py
pip --no-deps "sglang==$sglang"           # its own requirements name CUDA builds
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
cp "$here/_tv_cpu_shim.py" "$here/sgl_kernel.py" "$site/"
echo 'import _tv_cpu_shim' >"$site/tv_cpu_shim.pth"
echo "$wanted" >"$stamp"
step "ready"
