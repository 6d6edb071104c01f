#!/usr/bin/env bash
# ansible-test sanity, and units beside it, each on a staged copy (ansible-test wants a real folder .../ansible_collections/gb10/cluster), then
# antsibull-docs. Sanity keeps one core busy for most of its time, and units forks for each test: one after the other took 349 s
# instead of 238, and 361 instead of 319 where their environments have to be made first.
# All that ansible-test keeps for itself lands below .venv, nothing in the home folder.
set -euo pipefail
cd "$(dirname "$0")/.."
repo=$PWD
export PATH=$repo/.venv/bin:$PATH  # antsibull-docs calls ansible-galaxy by name
stage=$(mktemp -d)
units=
trap 'kill $units 2>/dev/null || true; rm -rf "$stage"' EXIT
staged() { # name of the copy
  local copy=$stage/$1/ansible_collections/gb10/cluster
  mkdir -p "$copy"
  git ls-files --cached --others --exclude-standard -z -- . ':!collections' | xargs -0 tar -c --ignore-failed-read | tar -x -C "$copy"
  if [ -d "${GB10_SHARED:-$repo/../shared}" ]; then  # ansible-test passes no variables of ours on: the samples go where the tests look first
    ln -s "$(cd "${GB10_SHARED:-$repo/../shared}" && pwd)" "$stage/$1/ansible_collections/gb10/shared"
  fi
  git -C "$copy" init -q && git -C "$copy" add -A  # ansible-test asks git for the files
}
on() { # name of the copy, words of ansible-test
  local copy=$stage/$1/ansible_collections/gb10/cluster; shift
  (cd "$copy" && "$repo/.venv/bin/ansible-test" "$@" --python "$version" --color no)
}
export HOME=$repo/.venv/home
cache=$HOME/.ansible/test/cache
mkdir -p "$cache"
# ansible-test would download get-pip.py; the interpreter's own ensurepip does the same from what is installed.
version=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
for name in $(grep -rhoE 'get-pip-[0-9.]+\.py' .venv/lib/python*/site-packages/ansible_test/_internal/ | sort -u) get-pip-25.2.py; do
  printf 'import ensurepip\nensurepip.bootstrap()\n' > "$cache/$(echo "${name%.py}" | tr '.-' '__').py"
done
staged sanity
staged units
on units units --num-workers "$(nproc)" > "$stage/units.log" 2>&1 &
units=$!
sanity=0
on sanity sanity --requirements "$@" || sanity=$?
wait "$units" && code=0 || code=$?
cat "$stage/units.log"
[ "$sanity$code" = 00 ] || { echo "ansible-test sanity ended with $sanity, ansible-test units with $code"; exit 1; }
.venv/bin/antsibull-docs lint-collection-docs --plugin-docs --skip-rstcheck .
.venv/bin/antsibull-changelog lint
