#!/bin/sh
# Compiles the kernels for GPUs with NVIDIA's compilers, which it installs from PyPI (about 300 MB)
# into a folder that it takes away again: tests/support/gpus/device_kernels.sh [PYTHON]. The tests run with that
# Python (default: python3), which needs hvdtune and its test dependencies.
set -eu
python=${1:-python3}
root=$(cd "$(dirname "$0")/../../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q nvidia-cuda-nvcc nvidia-cuda-nvrtc
HVDTUNE_TEST_CUDA=$(ls -d "$folder"/venv/lib/python3*/site-packages/nvidia/cu1*)
export HVDTUNE_TEST_CUDA
cd "$root"
"$python" -m pytest -q -rs tests/unit/test_device_kernels.py
