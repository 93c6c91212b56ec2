#!/usr/bin/env bash
# The gates, in the order of their price; stops at the first that is red. `lint` runs only the static ones.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(cd "${VENV:-.venv}/bin" && pwd)
step() { printf '\n== %s\n' "$*"; }

step "format and lint";          "$bin/ruff" format --check . && "$bin/ruff" check .
step "types";                    "$bin/mypy"
step "import directions";        "$bin/lint-imports"
[ "${1:-}" != lint ] || exit 0

step "the documentation"
scripts/docs.sh
step "unit, contract, transcripts"
# Each worker collects for itself: what holds no such test is not even imported. tests/unit/test_gates.py sees to it.
"$bin/python" -m pytest -q -n 2 tests/unit tests/contract tests/transcripts tests/fuzz tests/browser tests/integration/chaos
step "the wheel, installed without torch"
scripts/wheel_check.sh
step "the demo, in its short form"
"$bin/dflashctl" demo --short
step "real parts: torch, sshd, LXC, tmux"
if [ "${CI:-}" = true ]; then export DFLASHCTL_REQUIRE_LAB=1; fi
# Four at a time: most of these wait for real things. Each worker has a lab of its own; a file stays with one worker. One that
# fails is run once more, three at most, and told with its traceback: a fault all the same, to be looked into.
"$bin/python" -m pytest -q -n 4 --dist loadfile --no-loadscope-reorder --durations 15 --reruns 1 --max-suite-reruns 3 --rerun-show-tracebacks \
    -m "(integration or torch) and not slow" tests/integration tests/browser tests/torch tests/contract/test_artifacts.py \
    tests/unit/trainer/test_compile_turn.py
