"""Which runs of a record a fleet takes in."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from orchestrator.clock import SystemClock
from orchestrator.errors import ConfigError
from orchestrator.fleet import Board, FleetWatch, Ways
from orchestrator.launch import RELAUNCH_REASON
from orchestrator.playbook import load, shipped
from orchestrator.record import Record
from orchestrator.types.decision import ActKind, Decision
from orchestrator.types.failure import Diagnosis, FailureClass, RunState
from orchestrator.watch.ending import save_call
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


REFUSED = "refused: no_space"
CUT = Diagnosis(
    state=RunState.STOPPED,
    failure=FailureClass.KILLED_BY_USER,
    summary=f"stopped by its user: {RELAUNCH_REASON}",
)
ENOUGH = replace(CUT, summary="stopped by its user: enough")
Did = tuple[str, str, "str | None"]
BY_US: dict[str, tuple[list[Did | Diagnosis], bool]] = {
    "for good, then refused": ([("stop", "enough", "stopped"), ("relaunch", "so", REFUSED)], False),
    "refused twice": ([("stop", "enough", "stopped"), *[("relaunch", "so", REFUSED)] * 2], False),
    "cut, then refused": ([("stop", RELAUNCH_REASON, "stopped"), ("relaunch", "so", REFUSED)], True),
    "perhaps begun": ([("stop", "enough", "stopped"), ("relaunch", "so", "unknown")], True),
    "begun by another": ([("stop", "enough", "stopped"), ("relaunch", "so", "refused: run_alive")], True),
    "being begun": ([("stop", "enough", "stopped"), ("relaunch", "so", None), ENOUGH], True),
    "begun all the same": ([("launch", "so", "unknown"), ENOUGH], False),
    "seen": ([("launch", "so", "started"), CUT], True),
    "seen, then refused": ([("launch", "so", "started"), CUT, ("relaunch", "so", REFUSED)], True),
    "seen, then stopped": ([("launch", "so", "started"), CUT, ("stop", "enough", "stopped")], False),
    "seen, then begun": ([("launch", "so", "started"), CUT, ("relaunch", "so", "started")], False),
    "stopped by another": ([("stop", RELAUNCH_REASON, "stopped"), ENOUGH], False),
    "never done here": ([CUT], True),
    "never done here, for good": ([ENOUGH], False),
}


@pytest.mark.parametrize("name", BY_US)
def test_a_relaunch_is_cut_by_what_was_done_and_what_was_seen(tmp_path, name):
    done, is_taken = BY_US[name]
    with Record.open(tmp_path / "record.sqlite3") as record:
        row = record.save_run(name, {"ct": 200}, "pve/200", {"run": name}, NOW)
        for second, each in enumerate(done):
            now = NOW + timedelta(seconds=second)
            if isinstance(each, Diagnosis):
                record.diagnosis(row.id, 1, each, now)
            else:
                action = record.intend(row.id, 2 if each[0] == "relaunch" else 1, each[0], each[1], {}, now)
                if each[2] is not None:
                    record.outcome(action, each[2], now)
        record.transition(row.id, 1, None, RunState.STOPPED, "stopped", NOW)
        assert taken_in(record) == ([name] if is_taken else [])


def test_what_was_seen_of_an_older_attempt_is_past(tmp_path):
    with Record.open(tmp_path / "record.sqlite3") as record:
        row = record.save_run("r", {"ct": 200}, "pve/200", {"run": "r"}, NOW)
        record.diagnosis(row.id, 1, CUT, NOW)
        record.save_attempt(row.id, 2, by="user")
        record.transition(row.id, 2, None, RunState.STOPPED, "stopped", NOW)
        assert taken_in(record) == []


@pytest.mark.parametrize(("ends", "is_taken"), [(True, False), (False, True)])
def test_a_call_that_was_the_end_is_not_made_again(tmp_path, ends, is_taken):
    """One that only says how long it has waited goes on waiting."""
    with Record.open(tmp_path / "record.sqlite3") as record:
        row = record.save_run("r", {"ct": 200}, "pve/200", {"run": "r"}, NOW)
        record.outcome(record.intend(row.id, 1, "stop", RELAUNCH_REASON, {}, NOW), "stopped", NOW)
        record.diagnosis(row.id, 1, CUT, NOW)
        call = Decision(kind=ActKind.CALL, reason="it did not come")
        save_call(record, row.id, 1, call, "stopped", NOW + timedelta(seconds=90), ends=ends)
        record.transition(row.id, 1, None, RunState.STOPPED, "stopped", NOW)
        assert taken_in(record) == (["r"] if is_taken else [])


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
