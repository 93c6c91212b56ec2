"""The Grafana dashboard that comes with the program."""

from __future__ import annotations

from pathlib import Path

FILE = Path(__file__).parent / "grafana.json"


def dashboard() -> str:
    """Return it, to be imported into Grafana."""
    return FILE.read_text(encoding="utf-8")
