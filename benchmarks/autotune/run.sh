#!/usr/bin/env bash
# Everything there is to say about the tuner, simulated and real; about four hours on two CPUs.
#
#   benchmarks/autotune/run.sh            all of it; what is there already is kept
#   benchmarks/autotune/run.sh --quick    a few simulated runs, and the real ones that fit in a minute
set -euo pipefail
cd "$(dirname "$0")"
export HVDTUNE_AUTOTUNE_STORE=""  # nothing is taken from, or left in, anybody's memory
if [[ ${1:-} == --quick ]]; then
  python simulate.py --quick
  python real.py --seconds 60 --results "$(mktemp -d)/results-real.json"
else
  python bound.py
  python simulate.py --jobs 2
  python idle.py
  python real.py
fi
