#!/usr/bin/env bash
# ansible-test sanity on a staged copy (ansible-test requires a folder .../ansible_collections/gb10/cluster), then antsibull-docs and the site.
# The copy is what the tarball has (galaxy.yml), which is what Galaxy checks. Half of the checkout's Python is tests, labs and tools: Ruff and mypy check it.
# The unit tests run once, in make check: ansible-test units would repeat them with a fork for each, which takes minutes.
# All that ansible-test keeps for itself lands below .venv, nothing in the home folder.
set -euo pipefail
cd "$(dirname "$0")/.."
repo=$PWD
export PATH=$repo/.venv/bin:$PATH  # antsibull-docs calls ansible-galaxy by name
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
copy=$stage/ansible_collections/gb10/cluster
mkdir -p "$copy"
unpublished=(collections lab benchmarks tools molecule tests)
files=(git ls-files --cached --others --exclude-standard -z --)
{ "${files[@]}" . "${unpublished[@]/#/:!}"; "${files[@]}" tests/sanity; } | xargs -0 tar -c --ignore-failed-read | tar -x -C "$copy"
git -C "$copy" init -q && git -C "$copy" add -A  # ansible-test asks git for the files
export HOME=$repo/.venv/home
cache=$HOME/.ansible/test/cache
mkdir -p "$cache"
# ansible-test would download get-pip.py; the interpreter's own ensurepip does the same from what is installed.
version=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
for name in $(grep -rhoE 'get-pip-[0-9.]+\.py' .venv/lib/python*/site-packages/ansible_test/_internal/ | sort -u) get-pip-25.2.py; do
  printf 'import ensurepip\nensurepip.bootstrap()\n' > "$cache/$(echo "${name%.py}" | tr '.-' '__').py"
done
(cd "$copy" && "$repo/.venv/bin/ansible-test" sanity --requirements --python "$version" --color no "$@")
.venv/bin/antsibull-docs lint-collection-docs --plugin-docs --skip-rstcheck .
.venv/bin/antsibull-changelog lint
tools/docs_site.sh
