"""A person's relaunch stops the attempt that it looked at, and no newer one; the guest is a script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

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
        self.refusal: OrchestratorError | None = None
        self.asked: dict[str, Mapping[str, Any]] = {}

    def client(self) -> Guest:
        return self

    def call(
        self, verb: str, request: Mapping[str, Any], *, timeout_s: float, **more: object
    ) -> list[dict[str, Any]]:
        self.asked[verb] = request
        if verb == "look":
            return [run_message(3, run="r1", spec=SPEC)]
        if verb == "stop":
            return [{"type": "stopped", **self.stopped}]
        if self.refusal is not None:
            raise self.refusal
        return [{"type": "started", "attempt": request["attempt"], "session": "r1"}]


ENDED = {"already": False, "terminated": [101], "killed": []}


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
