#!/usr/bin/env bash
# Build the documentation site into .site/html: the Markdown pages, and the reference of modules, filters, lookups and roles (antsibull-docs).
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PWD/.venv/bin:$PATH ANSIBLE_COLLECTIONS_PATH=$PWD/collections
rm -rf .site/src
mkdir -p .site/src/reference
chmod og-w .site/src/reference  # antsibull-docs refuses a folder that others can write
git ls-files --cached --others --exclude-standard -z -- '*.md' 'docs/images/*' ':!.github' ':!tests' | xargs -0 cp --parents -t .site/src
cp tools/docsite/conf.py tools/docsite/index.rst .site/src
antsibull-docs collection --use-current --squash-hierarchy --fail-on-error --dest-dir .site/src/reference gb10.cluster
sphinx-build -q -W --keep-going -b html .site/src .site/html
echo "docs: .site/html/index.html"
