"""Which runs of a record a fleet takes in."""

from __future__ import annotations

from pathlib import Path

from orchestrator.clock import SystemClock
from orchestrator.errors import ConfigError
from orchestrator.fleet import Board, FleetWatch, Ways
from orchestrator.launch import RELAUNCH_REASON
from orchestrator.playbook import load, shipped
from orchestrator.record import Record
from orchestrator.types.failure import RunState
from tests.builders import NOW


def taken_in(record: Record) -> list[str]:
    asked: list[str] = []

    def no_way(row):
        asked.append(row.name)
        raise ConfigError("not here")

    clock = SystemClock()
    ways = Ways(site=no_way, playbook=lambda _row: load(shipped()), shipped=lambda: load(shipped()))
    fleet = FleetWatch(record, Board(clock), clock, ways, acting=True)
    fleet.start()
    fleet.stop()
    return sorted(set(asked))


def test_a_run_that_is_over_is_let_be_unless_a_relaunch_was_cut_after_its_stop(tmp_path):
    acts: dict[str, list[tuple[str, str, str | None]]] = {
        "for good": [("stop", "enough", "stopped")],
        "cut": [("relaunch", "so", "started"), ("stop", RELAUNCH_REASON, "stopped")],
        "cut in the stop": [("stop", RELAUNCH_REASON, None)],
        "cut in the start": [("stop", RELAUNCH_REASON, "stopped"), ("relaunch", "so", None)],
        "done": [("stop", RELAUNCH_REASON, "stopped"), ("relaunch", "so", "started")],
        "thought better of": [("stop", RELAUNCH_REASON, "stopped"), ("stop", "enough", "stopped")],
        "told of": [("stop", RELAUNCH_REASON, "stopped"), ("call", "it did not come", "told")],
    }
    with Record.open(tmp_path / "record.sqlite3") as record:
        for name, done in acts.items():
            row = record.save_run(name, {"ct": 200}, "pve/200", {"run": name}, NOW)
            for kind, reason, outcome in done:
                action = record.intend(row.id, 1, kind, reason, {}, NOW)
                if outcome is not None:
                    record.outcome(action, outcome, NOW)
            record.transition(row.id, 1, None, RunState.STOPPED, "stopped", NOW)
        assert taken_in(record) == ["cut", "cut in the start", "cut in the stop", "told of"]


def test_a_run_whose_playbook_is_gone_is_looked_at_by_the_shipped_one(tmp_path):
    with Record.open(tmp_path / "record.sqlite3") as record:
        gone = str(tmp_path / "gone.yaml")
        row = record.save_run("odd", {"ct": 200}, "pve/200", {"run": "odd"}, NOW, playbook=gone)

    def no_way(row):
        raise AssertionError("nothing is opened for it")

    ways = Ways(
        site=no_way, playbook=lambda row: load(Path(row.playbook or "")), shipped=lambda: load(shipped())
    )
    playbook, remark = ways.usable(row)
    assert playbook == load(shipped())
    assert remark.startswith(f"only looked at: {gone}: cannot be read: No such file")
