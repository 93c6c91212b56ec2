"""The gates name the folders that each stage collects: none that holds a test of the stage is missing."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
GATES = (TESTS.parent / "scripts" / "gates.sh").read_text().replace("\\\n", " ")
MARKED = re.compile(r"mark\.(?:torch|integration)\b")
WHOLE = re.compile(r"^pytestmark = [^\n]*(?:\n +[^\n]*)*mark\.(?:torch|integration|gpu|slow)\b", re.MULTILINE)


def collected(stage: str) -> list[Path]:
    """The paths that the stage's line of pytest gives."""
    (line,) = [line for line in GATES.splitlines() if "-m pytest" in line and stage in line]
    paths = [TESTS.parent / word for word in line.split() if word.startswith("tests/")]
    assert all(path.exists() for path in paths)
    return paths


def left_out(stage: str) -> set[Path]:
    """The files of tests that the stage never reads."""
    paths = collected(stage)
    files = TESTS.rglob("test_*.py")
    return {file for file in files if not any(file.is_relative_to(path) for path in paths)}


def test_every_test_with_real_parts_is_collected_in_their_stage():
    missing = {
        path
        for path in left_out("(integration or torch) and not slow")
        if MARKED.search(path.read_text()) and path != Path(__file__) and "gpu" not in path.parts
    }
    assert missing == set()


def test_every_quick_test_is_collected_in_the_first_stage():
    missing = {path for path in left_out("-n 2") if not WHOLE.search(path.read_text())}
    assert missing == set()
