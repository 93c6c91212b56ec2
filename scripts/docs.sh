#!/usr/bin/env bash
# Build the documentation, strictly: a broken link, an omitted page, a request to another host are errors. $1: where to; default a temporary place.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(cd "${VENV:-.venv}/bin" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
site=$(realpath -m "${1:-$work/site}")
# Not --quiet: it would keep the warnings from --strict too.
NO_MKDOCS_2_WARNING=1 "$bin/python" -m mkdocs build --strict --site-dir "$site" >"$work/log" 2>&1 ||
  { grep -v '^INFO' "$work/log" >&2; exit 1; }
"$bin/python" -m scripts.docs.outside "$site"
