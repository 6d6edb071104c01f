#!/usr/bin/env bash
# Every test, stage by stage, each with its time. A stage that fails does not keep the others from running, so that one run names all that is wrong;
# the long stages stop after three failures, because each failure there can cost minutes.
# CI ends at 90 minutes. `by 55 NAME COMMAND` starts no test of a stage later than 55 minutes after the begin: a machine of the usual speed is through by
# then. At half the speed the last tests of a stage are left out. They are named at the end, with the command that runs them.
set -euo pipefail
cd "$(dirname "$0")/.."
began=$(date +%s)
failed=()
stage() { local name=$1; shift; .venv/bin/python tools/stage.py "$name" -- "$@" || failed+=("$name"); }
by() { local end=$((began + $1 * 60)); shift; GB10_LAST_START=$end stage "$@"; }
GB10_LEFT_OUT=$(mktemp)
trap 'rm -f "$GB10_LEFT_OUT"' EXIT
export GB10_LEFT_OUT PATH=$PWD/.venv/bin:$PATH

if [ ! -d ../shared/samples ] && [ -z "${GB10_SHARED:-}" ]; then
  echo "NOTE: ../shared is not next to this checkout: the tests on third-party captures and boot logs are left out (CI fails without them)."
fi
stage "lint, types, unit tests (make check)" make --no-print-directory check
stage "fuzz, tests that take seconds, the agent over 500 simulated schedules" bash -c \
  'pytest tests/fuzz tests/sim -q -n 2 && pytest tests/unit/plugins/callback tests/security -q -n 2 -m "slow and not long"'
# Sanity keeps one core busy for most of its time: the contract tests run next to it.
by 24 "ansible-test sanity and antsibull-docs, contract tests" tools/both.sh tools/sanity.sh \
  'pytest tests/contract -q -n 2 -m "not long" --durations=12'
stage "the container lab" python lab/container/lab.py up
# The build waits for downloads half of its time.
stage "molecule: one scenario a role; the images of the VM lab" tools/both.sh 'python lab/vm/vmlab.py build' tools/molecule.sh
by 55 "end to end on the real engine" pytest tests/lab -q -m "not long" --durations=12 --maxfail=3
stage "the container lab, away again" python lab/container/lab.py down
by 76 "host bring-up on two emulated machines" pytest tests/vm -q -m "not long" --durations=12 --maxfail=3

if [ -s "$GB10_LEFT_OUT" ]; then
  echo "LEFT OUT, because this machine is too slow: $(wc -l < "$GB10_LEFT_OUT") tests. Run them with .venv/bin/pytest:"
  sort "$GB10_LEFT_OUT"
fi
[ "${#failed[@]}" = 0 ] || { printf 'FAILED: %s\n' "${failed[@]}"; exit 1; }
