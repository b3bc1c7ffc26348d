#!/usr/bin/env bash
# All measurements of the tuner, simulated and real; about four hours on two CPUs.
#
#   benchmarks/autotune/run.sh            all of them; existing results are kept
#   benchmarks/autotune/run.sh --quick    a few simulated runs, and the real ones that fit in a minute
set -euo pipefail
cd "$(dirname "$0")"
export HVDTUNE_AUTOTUNE_STORE=""  # uses and changes nobody's remembered profiles
if [[ ${1:-} == --quick ]]; then
  python simulate.py --quick
  python real.py --seconds 60 --results "$(mktemp -d)/results-real.json"
else
  python bound.py
  python simulate.py --jobs 2
  python idle.py
  python real.py
fi
