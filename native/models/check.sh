#!/usr/bin/env bash
# Checks the models in this directory exhaustively, and that each finds the faults ("mutants") that
# can be switched on in it. Prints a line for each check; its exit status is 1 if one failed.
# Needs spin and gcc; with tcc it takes half the time. `check.sh PATTERN` runs only the checks whose
# line has PATTERN in it.
set -u

models=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
pattern=${1:-}
work=$(mktemp -d)
trap 'kill $(jobs -pr) 2>/dev/null; rm -rf "$work"' EXIT

# sound MODEL [-DNAME=VALUE ...]: must have no error. faulty: must have one.
sound() { checks+=("sound $*"); }
faulty() { checks+=("faulty $*"); }
checks=()
source "$models/checks"

# Finding a fault takes less time than gcc takes to compile the checker with optimization.
quick="gcc -O0"
! command -v tcc >/dev/null || quick=tcc

# One check: result in $work/NUMBER.
check() {
  local number=$1 expected=$2 model=$3 compiler="gcc -O1" found states
  shift 3
  [[ $expected == sound ]] || compiler=$quick
  mkdir "$work/d$number"
  cd "$work/d$number" || exit 1
  if ! spin -a "$@" "$models/$model.pml" >log 2>&1 || ! $compiler -w -DSAFETY -o pan pan.c >log 2>&1; then
    echo "ERROR   $model $*: $(head -1 log)" >"../$number"
    return
  fi
  ./pan -w22 -m20000 >log 2>&1
  states=$(awk '/states, stored/ { print $1 }' log)
  if grep -q 'errors: [1-9]' log; then
    found=faulty
  elif grep -q 'errors: 0' log && ! grep -q 'max search depth too small\|not completed' log; then
    found=sound
  else
    found=incomplete
  fi
  if [[ $found == "$expected" ]]; then
    echo "ok      $model $*: $found, $states states" >"../$number"
  else
    echo "ERROR   $model $*: $found, should be $expected: $(grep -m1 '^pan' log)" >"../$number"
  fi
  cd "$work" && rm -rf "d$number"
}

number=0
for line in "${checks[@]}"; do
  [[ $line == *"$pattern"* ]] || continue
  number=$((number + 1))
  # As many at once as there are CPUs.
  while (($(jobs -pr | wc -l) >= $(nproc))); do wait -n; done
  # shellcheck disable=SC2086
  check "$number" $line &
done
wait

status=0
for ((i = 1; i <= number; i++)); do
  line=$(cat "$work/$i" 2>/dev/null || echo "ERROR   check $i did not run")
  echo "$line"
  [[ $line == ok* ]] || status=1
done
((number > 0)) || { echo "no check matches '$pattern'" && status=1; }
exit $status
