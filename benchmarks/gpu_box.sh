#!/usr/bin/env bash
# Rows of a box with an NVIDIA GPU: ONNX Runtime's CUDA provider and, where it installs, TensorRT. Minutes, one argument:
#   benchmarks/gpu_box.sh results-gpu [OPSETS]
# An environment that cannot be made is said and left out; a backend that is absent writes its own row.
set -uo pipefail
cd "$(dirname "$0")/.."
results=${1:?give the folder for the rows, e.g. results-gpu}
opsets=${2:-17}
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2> /dev/null || {
    echo "no NVIDIA GPU on this box: nvidia-smi does not answer" >&2
    exit 2
}
python=${PYTHON:-python3}
work=.venv-gpu
failed=0

environment() { # NAME PACKAGE...: make it once
    local place=$work/$1
    shift
    [ -e "$place/made" ] && return
    "$python" -m venv "$place" && "$place/bin/python" -m pip install --quiet "$@" && touch "$place/made"
}

replay() { # ENVIRONMENT BACKEND
    echo "== $2"
    timeout 900 "$work/$1/bin/python" -m harness.replay corpora/tiny-marian-en-zh.bundle \
        --backend "$2" --opset "$opsets" --results "$results" || failed=1
}

if environment cuda 'onnxruntime-gpu[cuda,cudnn]' numpy; then
    libraries=$(find "$PWD/$work/cuda" -path '*/nvidia/*/lib' -type d | paste -sd:)
    export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    replay cuda ort:cuda
    replay cuda ort:cuda_mixed
else
    echo "onnxruntime-gpu cannot be installed here; left out" >&2
fi
if environment tensorrt tensorrt cuda-bindings numpy; then
    for backend in tensorrt tensorrt:tf32 tensorrt:fp16; do
        replay tensorrt "$backend"
    done
else
    echo "tensorrt cannot be installed here; left out" >&2
fi
echo "rows in $results; copy the folder back and run: conform matrix $results"
exit $failed
