"""What ends a fleet's watch for a moment does not end it for good, where nobody starts it again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from orchestrator.clock import SystemClock
from orchestrator.errors import ConfigError, RecordError
from orchestrator.fleet import Board, FleetWatch, Ways, service
from orchestrator.mirror import Keeper
from orchestrator.playbook import load, shipped
from orchestrator.record import Record
from orchestrator.types.failure import RunState
from tests.builders import NOW

if TYPE_CHECKING:
    from orchestrator.record import RunRow
    from orchestrator.site import Site

CLOCK = SystemClock()


class Failing:
    """Fails in the watch's thread for as long as it is said."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.turns = 0

    def __call__(self) -> None:
        if self.error is not None:
            raise self.error
        self.turns += 1


def wait_until(is_so) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def no_site(row: RunRow) -> Site:
    raise AssertionError(f"there is no run, but {row.name} was asked for")


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "AGAIN_S", 0.05)
    fleets = []

    def make(*, begins_anew: bool) -> tuple[FleetWatch, Failing]:
        record = Record.open(tmp_path / "record.sqlite3")
        ways = Ways(site=no_site, playbook=lambda _row: load(shipped()), shipped=lambda: load(shipped()))
        fleet = FleetWatch(
            record, Board(CLOCK), CLOCK, ways, acting=True, begins_anew=begins_anew,
            mirror=Keeper(tmp_path / "logs", CLOCK),
        )  # fmt: skip
        failing = Failing()
        fleet.each_turn.append(failing)
        fleets.append((fleet, record))
        fleet.start()
        wait_until(lambda: failing.turns)
        return fleet, failing

    yield make
    for fleet, record in fleets:
        fleet.stop()
        assert not fleet.is_running
        record.close()


@pytest.mark.parametrize(
    "error", [RecordError("record: database is locked"), OSError(24, "Too many"), KeyError("x")]
)
def test_the_watch_goes_on_once_what_ended_it_is_over(made, error):
    fleet, failing = made(begins_anew=True)
    failing.error = error
    wait_until(lambda: fleet.fault is error)
    time.sleep(0.2)  # it fails again, and says so all the time
    assert fleet.fault is error
    turns, failing.error = failing.turns, None
    wait_until(lambda: fleet.fault is None and failing.turns > turns + 1)
    assert fleet.is_running


def test_a_view_s_watch_ends_as_a_watch_does(made):
    fleet, failing = made(begins_anew=False)
    failing.error = RecordError("record: database is locked")
    wait_until(lambda: not fleet.is_running)
    assert fleet.fault is failing.error


def test_a_record_that_is_moved_away_is_missed_and_gone_on_with_once_it_is_back(made, tmp_path):
    fleet, _ = made(begins_anew=True)
    path = tmp_path / "record.sqlite3"
    path.rename(tmp_path / "away")
    wait_until(lambda: fleet.fault is not None)
    assert "was moved or deleted while in use" in str(fleet.fault)
    (tmp_path / "away").rename(path)
    wait_until(lambda: fleet.fault is None)


def saved(record: Record, name: str, state: RunState, *, acts: int) -> None:
    row = record.save_run(name, {"ct": 200}, "pve/200", {"run": name}, NOW)
    for _ in range(acts):
        record.outcome(record.intend(row.id, 1, "stop", "enough", {}, NOW), "stopped", NOW)
    record.transition(row.id, 1, None, state, "so", NOW)


@pytest.mark.parametrize("is_other", [True, False])
def test_of_another_record_in_its_place_nothing_of_the_first_is_told_and_of_the_same_all(
    tmp_path, monkeypatch, is_other
):
    monkeypatch.setattr(service, "AGAIN_S", 0.05)
    path, asked = tmp_path / "record.sqlite3", []

    def no_way(row):
        asked.append(row.name)
        raise ConfigError("not here")

    ways = Ways(site=no_way, playbook=lambda _row: load(shipped()), shipped=lambda: load(shipped()))
    with Record.open(path) as record:
        saved(record, "first", RunState.STOPPED, acts=1)
        board = Board(CLOCK)
        fleet = FleetWatch(record, board, CLOCK, ways, acting=True, begins_anew=True)
        fleet.start()
        path.rename(tmp_path / "away")
        wait_until(lambda: fleet.fault is not None)
        if is_other:
            with Record.open(tmp_path / "other.sqlite3") as other:
                saved(other, "second", RunState.FINISHED, acts=2)
            (tmp_path / "other.sqlite3").rename(path)
        else:
            (tmp_path / "away").rename(path)
        wait_until(lambda: fleet.fault is None)
        fleet.stop()
        board.publish()
        assert [card.name for card in board.fleet.cards] == ["second" if is_other else "first"]
        assert asked == [], "a run that is over is let be, whatever the first record's acts were"


def test_of_the_same_record_that_is_back_a_run_launched_meanwhile_is_taken_in(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "AGAIN_S", 0.05)
    path, asked = tmp_path / "record.sqlite3", []

    def no_way(row):
        asked.append(row.name)
        raise ConfigError("not here")

    ways = Ways(site=no_way, playbook=lambda _row: load(shipped()), shipped=lambda: load(shipped()))
    with Record.open(path) as record:
        saved(record, "first", RunState.STOPPED, acts=1)
        fleet = FleetWatch(record, Board(CLOCK), CLOCK, ways, acting=True, begins_anew=True)
        fleet.start()
        path.rename(tmp_path / "away")
        wait_until(lambda: fleet.fault is not None)
        with Record.open(tmp_path / "away") as elsewhere:
            elsewhere.intend(elsewhere.run("first").id, 2, "launch", "by hand", {}, NOW)
        (tmp_path / "away").rename(path)
        wait_until(lambda: asked)
        fleet.stop()
