"""All runs of a record under one watch: they come and go, and are stopped and launched, while it goes on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from orchestrator.clock import SystemClock
from orchestrator.fleet import Asking, Board, FleetWatch, Ways
from orchestrator.fleet.health import health
from orchestrator.inventory import Target
from orchestrator.playbook import load, shipped
from orchestrator.site import Site
from orchestrator.types.failure import RunState
from tests.cli import LONG_S
from tests.integration.local import Local, local_runs, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from orchestrator.fleet import RunCard
    from orchestrator.record import Record, RunRow

pytestmark = pytest.mark.integration

CLOCK = SystemClock()
ENDLESS = ("--steps", "100000", "--step-s", "0.05", "--checkpoint-every", "5")


@pytest.fixture
def local(tmp_path, monkeypatch) -> Iterator[Local]:
    with local_runs(tmp_path) as here:
        monkeypatch.setenv("TMUX_TMPDIR", here.env["TMUX_TMPDIR"])
        yield here


class Viewed:
    """A fleet's watch, as a view has it."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.board = Board(CLOCK)
        ways = Ways(site=self.site, playbook=lambda row: load(_path(row)), shipped=lambda: load(shipped()))
        self.watch = FleetWatch(record, self.board, CLOCK, ways, acting=True)
        self.asking = Asking(record, CLOCK, self.site)
        self.watch.each_turn.append(lambda: self.asking.tell(self.board))

    def site(self, row: RunRow) -> Site:
        return Site(Target.from_json(row.target))

    def card(self, name: str) -> RunCard | None:
        return next((card for card in self.board.fleet.cards if card.name == name), None)

    def wait(self, name: str, is_so: Callable[[RunCard], bool], timeout: float = LONG_S) -> RunCard:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            card = self.card(name)
            if card is not None and is_so(card):
                return card
            time.sleep(0.05)
        told = [each.event.text for each in self.board.told()]
        raise AssertionError(f"{self.card(name)}; fault {self.watch.fault!r}; told {told}")

    def why_unwell(self) -> tuple[str, ...]:
        turned_s_ago = self.watch.turned_s_ago
        fleet, fault = self.board.fleet, self.watch.fault
        return health(fleet, CLOCK.now(), acting=True, fault=fault, turned_s_ago=turned_s_ago).why

    def row(self, name: str) -> RunRow:
        return self.record.run(name)

    def told(self, name: str) -> list[str]:
        return [f"{each.event.kind}: {each.event.text}" for each in self.board.told(run=name)]


def _path(row: RunRow) -> Path | None:
    from pathlib import Path

    return Path(row.playbook) if row.playbook else None


def trains(card: RunCard) -> bool:
    return card.state is RunState.HEALTHY and (card.step or 0) > 0


def test_runs_come_and_go_and_are_asked_while_the_others_are_watched_on(local):
    local.begin_standin("first", *ENDLESS)
    with local.record() as record:
        seen = Viewed(record)
        seen.watch.start()
        try:
            seen.wait("first", trains)
            local.begin_standin("second", *ENDLESS)
            second = seen.wait("second", trains)
            assert second.blind is None
            first = seen.card("first")
            assert first is not None
            step = first.step or 0
            seen.wait(
                "first", lambda card: (card.step or 0) > step
            )  # the stream was opened anew, and goes on
            assert not [line for line in seen.told("first") if line.startswith(("blind", "fault"))]

            seen.asking.stop(seen.row("second"), asked_by="a test")
            ended = seen.wait("second", lambda card: card.has_ended)
            assert ended.state is RunState.STOPPED
            seen.asking.relaunch(seen.row("second"), asked_by="a test")
            again = seen.wait("second", lambda card: card.attempt == 2 and trains(card))
            assert not again.has_ended
            assert any(line.startswith("outcome: attempt 2 started") for line in seen.told("second"))

            local.run("stop", "second", "--grace", "0s")
            seen.wait("second", lambda card: card.has_ended)
            local.run("rm", "second", "--yes")
            wait_until(lambda: seen.card("second") is None, what="it is let go")
            step = (seen.wait("first", trains).step or 0) + 10
            seen.wait("first", lambda card: (card.step or 0) > step)
            assert not [line for line in seen.told("first") if line.startswith(("blind", "fault"))]
            wait_until(lambda: seen.why_unwell() == (), what=f"it is well, and not {seen.why_unwell()}")
        finally:
            seen.watch.stop()
        assert not seen.watch.is_running
        assert seen.watch.fault is None


@pytest.mark.slow
def test_a_run_that_had_ended_is_watched_when_it_is_launched_again(local):
    local.begin_standin("done", *ENDLESS)
    local.run("stop", "done", "--grace", "0s")
    with local.record() as record:
        seen = Viewed(record)
        local.run("watch", "done", code=3)  # its end is on record
        seen.watch.start()
        try:
            time.sleep(1.5)
            card = seen.card("done")
            assert card is not None
            assert card.has_ended
            assert seen.watch.runs == []  # nothing is opened for what has ended
            local.run("relaunch", "done", "--yes")
            assert seen.wait("done", trains).attempt == 2
        finally:
            seen.watch.stop()


def test_a_playbook_that_is_wrong_leaves_a_run_looked_at_and_is_used_when_it_was_mended(local):
    crashing = (
        "--steps",
        "60",
        "--step-s",
        "0.05",
        "--checkpoint-every",
        "5",
        "--crash-at",
        "20",
        "--fx-text",
    )
    local.begin_standin("risky", *crashing, "--crash-attempts", "1")
    local.playbook.write_text("rules: [this is no playbook")
    with local.record() as record:
        seen = Viewed(record)
        seen.watch.start()
        try:
            dead = seen.wait("risky", lambda card: card.state is RunState.DEAD and card.next_act is not None)
            assert not dead.is_acting
            assert dead.remark.startswith("only looked at: ")
            assert str(local.playbook) in dead.remark
            time.sleep(1.5)
            assert local.attempts("risky") == [1]
            local.playbook.write_text("extends: default\nbackoff: [0s, 1s]\njitter: 0\n")
            seen.watch.reload()
            finished = seen.wait("risky", lambda card: card.state is RunState.FINISHED)
            assert finished.attempt == 2
            assert finished.is_acting
        finally:
            seen.watch.stop()


def test_a_playbook_that_goes_wrong_under_a_watch_leaves_it_acting_by_the_one_before(local):
    words = (
        "--steps",
        "120",
        "--step-s",
        "0.05",
        "--checkpoint-every",
        "5",
        "--crash-at",
        "100",
        "--fx-text",
        "--cue",
        str(local.cue),
    )
    local.begin_standin("risky", *words, "--crash-attempts", "1")
    good = local.playbook.read_text()
    with local.record() as record:
        seen = Viewed(record)
        seen.watch.start()
        try:
            seen.wait("risky", trains)
            local.playbook.write_text("rules: [this is no playbook")
            seen.watch.reload()
            warned = seen.wait("risky", lambda card: "as it was before" in card.remark)
            assert warned.is_acting
            assert str(local.playbook) in warned.remark
            assert [line for line in seen.told("risky") if line.startswith("reload: its playbook")]
            local.cue.touch()
            finished = seen.wait("risky", lambda card: card.state is RunState.FINISHED)
            assert finished.attempt == 2
            local.playbook.write_text(good)
            seen.watch.reload()
            assert seen.wait("risky", lambda card: not card.remark).is_acting
        finally:
            seen.watch.stop()
