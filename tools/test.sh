#!/usr/bin/env bash
# Every test, stage by stage, each with its time. Stops at the first stage that fails; the long stages stop after three failures,
# because each failure there can cost minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
stage() { local name=$1; shift; .venv/bin/python tools/stage.py "$name" -- "$@"; }
export PATH=$PWD/.venv/bin:$PATH

if [ ! -d ../shared/samples ] && [ -z "${GB10_SHARED:-}" ]; then
  echo "NOTE: ../shared is not next to this checkout: the tests on third-party captures and boot logs are left out (CI fails without them)."
fi
stage "lint, types, unit tests (make check)" make --no-print-directory check
stage "fuzz, and security tests that take seconds" bash -c 'pytest tests/fuzz -q && pytest tests/security -q -n 2 -m "slow and not long"'
stage "the agent over 500 simulated schedules" pytest tests/sim -q
# Sanity keeps one core busy for most of its time: the contract tests run next to it.
stage "ansible-test sanity and antsibull-docs, contract tests" bash -c '
  log=$(mktemp); tools/sanity.sh > "$log" 2>&1 & sanity=$!
  code=0; pytest tests/contract -q -n 2 -m "not long" || code=$?
  wait "$sanity" || code=$?
  cat "$log"; exit "$code"'
stage "the container lab" python lab/container/lab.py up
stage "molecule: one scenario a role" tools/molecule.sh
stage "end to end on the real engine" pytest tests/lab -q -m "not long" --durations=12 --maxfail=3
stage "the container lab, away again" python lab/container/lab.py down
stage "host bring-up on two emulated machines" pytest tests/vm -q -m "not long" --durations=12 --maxfail=3
