#!/usr/bin/env bash
# The molecule scenarios, one after the other, on the container lab's nodes; or those named as arguments. Without arguments sysctl, readahead and
# roce are left out, because a container skips what they do and the VM stage tests them on real kernels; and vllm_tp2, because the end-to-end tests
# begin with the same steps.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PWD/.venv/bin:$PATH MOLECULE_GLOB='molecule/*/molecule.yml'
python lab/container/lab.py up
[ $# -gt 0 ] || set -- $(for d in molecule/*/; do n=$(basename "$d"); case $n in default | inventory | sysctl | readahead | roce | vllm_tp2) ;; *) echo "$n" ;; esac; done)
for scenario in "$@"; do
  start=$SECONDS
  molecule test --no-command-borders --scenario-name "$scenario"
  echo "molecule: $scenario: ok in $((SECONDS - start)) s"
done
