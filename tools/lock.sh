#!/usr/bin/env bash
# Renew requirements.lock, requirements-dev.lock and the lock of the role bench: the newest versions in the ranges, with the hashes of all wheels of each.
# One lock is valid for Python 3.12 to 3.14, on x86_64 and aarch64.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=$(mktemp -d)
trap 'rm -rf "$uv"' EXIT
.venv/bin/python -m venv "$uv"
"$uv/bin/pip" install --disable-pip-version-check --quiet uv==0.13.9
compile=("$uv/bin/uv" pip compile --quiet --upgrade --universal --python-version 3.12 --generate-hashes --no-annotate --custom-compile-command "make lock")
"${compile[@]}" requirements-dev.txt --output-file requirements-dev.lock
"${compile[@]}" requirements.txt --constraint requirements-dev.lock --output-file requirements.lock
"${compile[@]}" roles/bench/files/requirements.txt --output-file roles/bench/files/requirements.lock
