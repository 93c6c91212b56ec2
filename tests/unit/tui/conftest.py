from __future__ import annotations

import difflib
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.tui.stage import Stage, open_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.unit.tui.stage import Played

SHOTS = Path(__file__).with_name("shots")
IDS = re.compile(r"terminal-\d+-")


@pytest.fixture(autouse=True)
def _one_zone(monkeypatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def stage(tmp_path) -> Iterator[Stage]:
    with open_record(tmp_path) as record:
        yield Stage(record)


@pytest.fixture
def shot(tmp_path) -> Callable[[Played, str], None]:
    """Compares a picture with the kept one; UPDATE_SHOTS=1 keeps it instead. They open in any browser."""

    def compare(played: Played, name: str) -> None:
        svg = "".join(line.rstrip() + "\n" for line in IDS.sub("terminal-", played.svg).splitlines())
        kept = SHOTS / f"{name}.svg"
        if os.environ.get("UPDATE_SHOTS") == "1":
            kept.write_text(svg)
        if kept.exists() and kept.read_text() == svg:
            return
        new = tmp_path / kept.name
        new.write_text(svg)
        old = kept.read_text() if kept.exists() else ""
        told = "\n".join(difflib.unified_diff(seen(old), seen(svg), "kept", "now", lineterm=""))
        pytest.fail(f"{kept.name} differs; look at {new}, then UPDATE_SHOTS=1 if it is meant so\n{told}")

    return compare


def seen(svg: str) -> list[str]:
    """Return the lines of letters in a picture, for a message."""
    rows: dict[float, list[str]] = {}
    for y, text in re.findall(r'<text [^>]*y="([\d.]+)"[^>]*>([^<]*)</text>', svg):
        rows.setdefault(float(y), []).append(text.replace("&#160;", " "))
    return ["".join(parts).rstrip() for _, parts in sorted(rows.items())]
