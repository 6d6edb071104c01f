#!/usr/bin/env bash
# Every molecule scenario but default, one after the other, on the container lab's nodes; or those named as arguments.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PWD/.venv/bin:$PATH MOLECULE_GLOB='molecule/*/molecule.yml'
python lab/container/lab.py up
[ $# -gt 0 ] || set -- $(for d in molecule/*/; do n=$(basename "$d"); [ "$n" = default ] || [ "$n" = inventory ] || echo "$n"; done)
for scenario in "$@"; do
  start=$SECONDS
  molecule test --no-command-borders --scenario-name "$scenario"
  echo "molecule: $scenario: ok in $((SECONDS - start)) s"
done
