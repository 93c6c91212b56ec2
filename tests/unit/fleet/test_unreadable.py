"""One run whose place cannot be read takes nothing from the others."""

from __future__ import annotations

import time

from orchestrator.clock import SystemClock
from orchestrator.errors import ConfigError
from orchestrator.fleet import Board, FleetWatch, Ways
from orchestrator.fleet.health import health
from orchestrator.playbook import load, shipped
from orchestrator.record import Record
from tests.builders import NOW


def test_the_watch_begins_and_goes_on_and_says_which_run_it_cannot_watch(tmp_path):
    clock = SystemClock()

    def no_way(row):
        raise ConfigError(f"{row.name}: the record's target is not readable")

    with Record.open(tmp_path / "record.sqlite3") as record:
        record.save_run("odd", {"host": 5}, "pve/200", {"run": "odd"}, NOW)
        board = Board(clock)
        ways = Ways(site=no_way, playbook=lambda _row: load(shipped()), shipped=lambda: load(shipped()))
        fleet = FleetWatch(record, board, clock, ways, acting=True)
        fleet.start()
        try:
            deadline = time.monotonic() + 60
            while fleet.turned_at is None and time.monotonic() < deadline:
                time.sleep(0.02)
            assert fleet.fault is None
            (card,) = board.fleet.cards
            assert card.is_stale(clock.now())
            told = health(
                board.fleet, clock.now(), acting=True, fault=fleet.fault, turned_s_ago=fleet.turned_s_ago
            )
            assert told.why == (
                "odd at pve/200 is not seen: it cannot be watched: odd: the record's target is not readable",
            )
        finally:
            fleet.stop()
