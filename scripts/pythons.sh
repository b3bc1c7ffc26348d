#!/usr/bin/env bash
# Runs the quick tests with every Python, 3.10 or newer, that it finds: see --help.
set -euo pipefail

usage() {
  cat <<'HELP'
scripts/pythons.sh [--list] [VERSION...] [-- ARGUMENT...]

Installs hvdtune and the tests' packages for every Python, 3.10 or newer, on PATH or in pyenv, each in
a new virtual environment, and runs the quick tests there. Prints one line with the result per Python.
Exit status: 0 if the tests passed with every Python, 1 if they failed or could not run with one, 2
after a mistake in the command.

  VERSION    only Pythons of this version: 3.12, or 3.12.1
  ARGUMENT   arguments for pytest: -- tests/unit -x
  --list     only list the Pythons

All its files are in a temporary folder (below TMPDIR), which is removed at the end and after Ctrl-C.
HELP
}

mistake() {
  echo "scripts/pythons.sh: $*" >&2
  exit 2
}

# Paths that may be Pythons. They include pyenv's shims; shims of versions that are not selected in
# pyenv do not run.
candidates() {
  local folder
  local -a folders
  IFS=: read -ra folders <<<"$PATH"
  for folder in "${folders[@]}"; do
    printf '%s\n' "$folder"/python3 "$folder"/python3.[0-9] "$folder"/python3.[0-9][0-9]
  done
  printf '%s\n' "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python
}

# "version path" of every Python, 3.10 or newer, oldest first. Environments, shims and links are
# resolved to the Python itself, which is listed once.
pythons() {
  local candidate
  candidates | while IFS= read -r candidate; do
    [[ -x $candidate ]] || continue
    "$candidate" -I - 2>/dev/null <<'PROGRAM' || true
import os, platform, sys
path = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
if sys.version_info >= (3, 10) and sys.implementation.name == "cpython":
    print(platform.python_version(), path)
PROGRAM
  done | sort -u | sort -V
}

chosen() {
  local version=$1 one
  [[ ${#versions[@]} != 0 ]] || return 0
  for one in "${versions[@]}"; do
    [[ $version != "$one" && $version != "$one".* ]] || return 0
  done
  return 1
}

# Runs a command so that it can be ended together with its children; its output is in $log.
child=
run() {
  local status=0
  "$@" >"$log" 2>&1 </dev/null &
  child=$!
  wait "$child" || status=$?
  child=
  return "$status"
}

ended() {
  trap '' INT TERM HUP
  if [[ -n $child ]]; then
    kill -INT -- "-$child" 2>/dev/null || true
    wait "$child" 2>/dev/null || true
  fi
  rm -rf "$work"
}

# Tests one Python; prints its line.
try() {
  local version=$1 python=$2 environment=$work/$1 status=0 said
  shift 2
  SECONDS=0
  if ! run "$python" -m venv "$environment"; then
    said="no virtual environment: $(tail -n 1 "$log")"
  elif ! run "$environment/bin/pip" install -q "$checkout[test]"; then
    said="not installed: $(grep -m 1 '^ERROR' "$log" || tail -n 1 "$log")"
  else
    run env VIRTUAL_ENV="$environment" PATH="$environment/bin:$PATH" \
      "$environment/bin/python" -m pytest -rfE "$@" || status=$?
    said=$(tail -n 1 "$log" | sed 's/^=* *//; s/ in [0-9].*//')
    if [[ $status == 0 ]]; then
      passed=$((passed + 1))
    else
      sed -n '/short test summary/,$p' "$log" >&2
      [[ $said == *failed* || $said == *error* ]] || said="pytest ended with status $status: $said"
    fi
  fi
  tried=$((tried + 1))
  printf '%-8s %s, %d min %02d s (%s)\n' "$version" "$said" $((SECONDS / 60)) $((SECONDS % 60)) "$python"
  rm -rf "$environment"
}

list=
versions=()
while [[ $# != 0 ]]; do
  case $1 in
    --help | -h)
      usage
      exit
      ;;
    --list) list=yes ;;
    --)
      shift
      break
      ;;
    [0-9]*) versions+=("$1") ;;
    *) mistake "$1 is neither an option nor a version; pytest's arguments come after --" ;;
  esac
  shift
done

cd "$(dirname "${BASH_SOURCE[0]}")/.."
found=$(pythons | while read -r version python; do
  ! chosen "$version" || echo "$version $python"
done)
[[ -n $found ]] || mistake "there is no Python of ${versions[*]:-3.10 or newer} on PATH or in pyenv"
if [[ -n $list ]]; then
  echo "$found"
  exit
fi

work=$(mktemp -d)
trap ended EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
set -m # each child has a process group of its own, and gets Ctrl-C
checkout=$work/checkout log=$work/log
# Copy the checkout without build results: tests would find these, and pip would add more.
mkdir "$checkout"
tar -c --exclude-vcs --exclude-vcs-ignores --exclude=./build --exclude=./.venv . |
  tar -x -C "$checkout"
cd "$checkout"
tried=0 passed=0
# In braces, so that bash reads it to the end before it tries the first Python: the file may change.
{
  while read -r version python <&3; do
    try "$version" "$python" "$@"
  done 3<<<"$found"
  [[ $passed == "$tried" ]]
  exit
}
