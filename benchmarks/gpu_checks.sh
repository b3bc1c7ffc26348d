#!/bin/sh
# The checks that need a GPU, in about 10 minutes; writes docs/gpu-results.md. On a machine without
# a GPU it prints one sentence and ends. PYTHON names the interpreter that has hvdtune and PyTorch
# (default: python3); flags: benchmarks/gpu_checks.sh --help.
exec "${PYTHON:-python3}" "$(dirname "$0")/gpu/checks.py" "$@"
