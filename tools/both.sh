#!/usr/bin/env bash
# Run two shell lines at the same time: tools/both.sh 'FIRST' 'SECOND'. What the first prints comes at the end. Fails if one of them fails.
set -uo pipefail
log=$(mktemp)
trap 'rm -f "$log"' EXIT
bash -c "$1" > "$log" 2>&1 & first=$!
code=0
bash -c "$2" || code=$?
wait "$first" || code=$?
cat "$log"
exit "$code"
