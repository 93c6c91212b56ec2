"""A person's relaunch stops the attempt that it looked at, and no newer one; the guest is a script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.errors import GuestRefused, RunAlive
from orchestrator.inventory import Host, Target
from orchestrator.launch import RunSpec, spec_document
from orchestrator.operate import Operator
from orchestrator.record import Record
from tests.builders import NOW, run_message
from tests.unit.watch.bench import HELLO, FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from orchestrator.errors import OrchestratorError

AT = "2026-11-29T12:00:00.000000Z"
SPEC = spec_document(RunSpec(run="r1", command=("train",)), state_dir="/s", attempt=3, created_at="t")


class Guest:
    """A container whose attempt 3 lives."""

    state_dir = "/s"
    hello = HELLO
    target = Target(host=Host(name="pve", address="10.1.2.6"), ct=200)
    target_key = target.key
    ct = 200

    def __init__(self, stopped: Mapping[str, Any]) -> None:
        self.stopped = stopped
        self.is_alive = True
        self.dies_at_stop = False
        self.refusal: OrchestratorError | None = None
        self.asked: dict[str, Mapping[str, Any]] = {}

    def client(self) -> Guest:
        return self

    def call(
        self, verb: str, request: Mapping[str, Any], *, timeout_s: float, **more: object
    ) -> list[dict[str, Any]]:
        self.asked[verb] = request
        if verb == "look":
            return [run_message(3, run="r1", spec=SPEC, alive=self.is_alive)]
        if verb == "stop":
            self.is_alive = self.is_alive and not self.dies_at_stop
            return [{"type": "stopped", **self.stopped}]
        if self.refusal is not None:
            raise self.refusal
        return [{"type": "started", "attempt": request["attempt"], "session": "r1"}]


ENDED = {"already": False, "terminated": [101], "killed": [], "at": AT}
SUPERSEDED = {"already": True, "terminated": [], "killed": []}


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    with Record.open(tmp_path / "record.sqlite3") as record:
        yield record


def operator(record: Record, guest: Guest) -> Operator:
    return Operator(guest, record, FakeClock())  # type: ignore[arg-type]


def relaunch(record: Record, guest: Guest) -> None:
    row = record.save_run("r1", guest.target.to_json(), guest.target_key, SPEC, NOW)
    operator(record, guest).relaunch(row, lambda spec: spec, reason="so")


def test_the_stop_of_a_relaunch_means_the_attempt_that_was_seen(record):
    """The record may know of fewer attempts than there are: another may have begun them."""
    guest = Guest(ENDED)
    relaunch(record, guest)
    assert guest.asked["stop"]["only_attempt"] == 3
    assert guest.asked["start"]["attempt"] == 4
    assert [event.attempt for event in record.events() if event.kind == "action"] == [3, 4]


def test_a_persons_stop_means_whatever_lives(record):
    guest = Guest(ENDED)
    row = record.save_run("r1", guest.target.to_json(), guest.target_key, SPEC, NOW)
    operator(record, guest).stop(row, reason="enough")
    assert "only_attempt" not in guest.asked["stop"]


def test_its_start_follows_its_own_stop_and_no_later_one(record):
    guest = Guest(ENDED)
    relaunch(record, guest)
    assert (guest.asked["start"]["finishes"], guest.asked["start"]["unless_stopped"]) == (AT, True)


def test_a_relaunch_of_what_does_not_live_follows_no_stop(record):
    guest = Guest(ENDED)
    guest.is_alive = False
    relaunch(record, guest)
    assert "stop" not in guest.asked
    assert (guest.asked["start"]["finishes"], guest.asked["start"]["unless_stopped"]) == (None, False)


def test_where_a_newer_attempt_began_the_start_is_refused_by_its_number(record):
    guest = Guest(SUPERSEDED)
    guest.refusal = GuestRefused("attempt 4 exists", reason="attempt_exists")
    guest.dies_at_stop = True
    with pytest.raises(RunAlive, match="attempt 4 exists"):
        relaunch(record, guest)
    assert guest.asked["start"]["attempt"] == 4


def refused(record: Record, guest: Guest, reason: str) -> GuestRefused:
    guest.refusal = GuestRefused("no", reason=reason, hint="free space")
    with pytest.raises(GuestRefused) as caught:
        relaunch(record, guest)
    return caught.value


def test_one_refused_after_its_stop_says_that_a_watch_goes_on_with_it(record):
    hint = "free space; a watch starts it once that is mended; `dflashctl stop` gives it up"
    assert refused(record, Guest(ENDED), "no_space").hint == hint


@pytest.mark.parametrize("reason", ["stopped_by_user", "start_failed"])
def test_one_that_is_no_order_any_more_does_not_say_so(record, reason):
    assert refused(record, Guest(ENDED), reason).hint == "free space"


def test_nor_does_one_that_stopped_nothing(record):
    guest = Guest(ENDED)
    guest.is_alive = False
    assert refused(record, guest, "no_space").hint == "free space"
