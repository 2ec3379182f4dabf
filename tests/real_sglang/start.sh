#!/usr/bin/env bash
# usage: start.sh VENV PORT MODEL [more launch_server flags...]
# The real SGLang HTTP server on 127.0.0.1:PORT in the foreground, from the virtual environment that setup.sh made. It
# binds its port when it is ready, 15 to 21 s after its start, and takes about 2.1 GB.
set -euo pipefail
venv=${1:?virtual environment} port=${2:?port} model=${3:?model folder}
shift 3
export SGLANG_USE_CPU_ENGINE=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec "$venv/bin/python" -m sglang.launch_server \
  --model-path "$model" --host 127.0.0.1 --port "$port" \
  --device cpu --dtype bfloat16 \
  --attention-backend torch_native --sampling-backend pytorch --grammar-backend none \
  --disable-cuda-graph --disable-overlap-schedule --max-total-tokens 2000 \
  --skip-server-warmup --sleep-on-idle "$@"
