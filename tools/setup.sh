#!/usr/bin/env bash
# Set up .venv at the root of the checkout: tools/setup.sh run (what a playbook needs) or tools/setup.sh dev (what the tests need as well).
# Finds Python 3.12 or later by running it; nothing global is changed.
set -euo pipefail
cd "$(dirname "$0")/.."
want=${1:-run}
case $want in run) list=requirements.lock ;; dev) list=requirements-dev.lock ;; *) echo "usage: tools/setup.sh [run|dev]" >&2; exit 2 ;; esac

find_python() {
  local candidate
  for candidate in ${GB10_PYTHON:-} python3.13 python3.12 python3.14 "$HOME"/.pyenv/versions/3.1[234].*/bin/python "${PYENV_ROOT:-/opt/pyenv}"/versions/3.1[234].*/bin/python python3; do
    # A pyenv shim exists without running: only an interpreter that answers counts.
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 12) <= sys.version_info < (3, 15))' >/dev/null 2>&1; then
      echo "$candidate"; return
    fi
  done
  return 1
}

# macOS has shasum, and not sha256sum.
sum() { if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi; }

stamp=.venv/.ready-$want-$(cat requirements.lock requirements-dev.lock | sum | cut -c1-12)
[ -e "$stamp" ] && exit 0
if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1; then
  python=$(find_python) || {
    echo "No Python 3.12, 3.13 or 3.14 that runs was found on PATH or under pyenv. Ubuntu 24.04 and DGX OS 7: apt install python3-venv. Debian 12: pyenv install 3.13. macOS: brew install python@3.13. Or name one: GB10_PYTHON=/path/to/python make ..." >&2
    exit 1
  }
  echo "setup: making .venv with $($python --version) ($python)"
  "$python" -m venv --clear .venv
fi
echo "setup: installing $list into .venv (about a minute)"
.venv/bin/python -m pip install --disable-pip-version-check --quiet --progress-bar off --require-hashes -r "$list"
touch "$stamp"
[ "$want" = dev ] && touch "${stamp/ready-dev/ready-run}"
# sed reads to the end; head closes the pipe early, and ansible then fails with BrokenPipeError.
echo "setup: $(.venv/bin/ansible --version | sed -n 1p)"
if [ "$want" = run ]; then echo "setup: done; '. .venv/bin/activate' makes ansible-playbook known to this shell"; fi
