"""What was asked of a run is not cut in two by the end of who was asked."""

from __future__ import annotations

import threading

import pytest

from orchestrator.clock import SystemClock
from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.fleet import Asking, Board
from orchestrator.record import Record
from tests.builders import NOW


@pytest.fixture
def record(tmp_path):
    with Record.open(tmp_path / "record.sqlite3") as opened:
        yield opened


def test_who_ends_waits_for_what_was_asked_but_not_for_ever(record):
    row = record.save_run("risky", {"ct": 200}, "pve/200", {"run": "risky"}, NOW)
    gate = threading.Event()

    def open_site(_row):
        gate.wait(60)
        raise OrchestratorError("the far side is gone")

    asking, board = Asking(record, SystemClock(), open_site), Board(SystemClock())
    assert asking.join(1.0) == []
    asking.relaunch(row, asked_by="a test")
    assert asking.under_way == ["risky"]
    assert asking.join(0.05) == ["risky"]
    with pytest.raises(ConfigError, match="still under way"):
        asking.stop(row, asked_by="a test")
    gate.set()
    assert asking.join(60) == []
    asking.tell(board)
    texts = [each.event.text for each in board.told()]
    assert texts == ["relaunching, as asked", "not done: the far side is gone"]
