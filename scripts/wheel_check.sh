#!/usr/bin/env bash
# Build the wheel, install it in an empty environment without torch, and use what a person would use first.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(cd "${VENV:-.venv}/bin" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$bin/python" -m build --wheel --outdir "$work/dist" . >"$work/build.log" 2>&1 || { tail -20 "$work/build.log"; exit 1; }
"$bin/python" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "$work"/dist/*.whl
cd "$work"
export XDG_STATE_HOME="$work/state" XDG_CONFIG_HOME="$work/config"
"$work/venv/bin/python" -c 'import importlib.util as u; assert u.find_spec("torch") is None, "torch came along"'
"$work/venv/bin/dflashctl" --version
"$work/venv/bin/dflashctl" --help >/dev/null
"$work/venv/bin/dflashctl" inventory list
"$work/venv/bin/dflashctl" launch --host 10.1.2.6 --ct 200 --dry-run
"$work/venv/bin/dflashctl" ps
{ "$work/venv/bin/dflashctl" serve 2>&1 || true; } | grep -qF "pip install 'dflashctl[serve]'"
"$work/venv/bin/python" -c '
from orchestrator import serve
from pathlib import Path
for name in ("templates/fleet.html", "static/app.css", "static/js/fleet.js", "grafana.json"):
    assert Path(serve.__path__[0], name).is_file(), f"{name} is not in the wheel"
'
"$work/venv/bin/dflashctl" provision --host local --check || [ $? = 14 ]
echo "wheel: $(du -h dist/*.whl | cut -f1), works without torch"
