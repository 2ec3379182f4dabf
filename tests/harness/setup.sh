#!/usr/bin/env bash
# usage: setup.sh PYTHON VENV
# Makes the virtual environment anew; pip's output is shown only when a step fails.
set -euo pipefail
python=$1 venv=$2
log=$(mktemp)
trap 'rm -f "$log"' EXIT

step() {
  echo "setup $1"
  shift
  "$@" >"$log" 2>&1 || { cat "$log"; echo "setup failed at: $*" >&2; exit 1; }
}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  { echo "setup: Python 3.11 or newer is needed; name one: make setup PYTHON=python3.12" >&2; exit 1; }
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
step "1/3: virtual environment in $venv" "$python" -m venv --clear "$venv"
step "2/3: torch 2.13.0 (a minute or two)" "${pip[@]}" torch==2.13.0 numpy
step "3/3: this package and its tools" "${pip[@]}" -e '.[dev]'
