"""What a launch refuses before anything is made; the guest is a script, the record is real."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.errors import ConfigError, GuestRefused
from orchestrator.inventory import Host, Target
from orchestrator.launch import RunSpec
from orchestrator.operate import Operator, nothing_left
from orchestrator.record import Record
from tests.unit.watch.bench import HELLO, NO_DRIVER, FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

TWO_GPUS = {"type": "gpu", "gpus": [{"index": 0}, {"index": 1}], "source": "nvml", "problem": None}
STUCK: dict[str, Any] = {
    "type": "gpu",
    "gpus": [],
    "source": None,
    "problem": "the GPU driver does not answer",
}


class Guest:
    """A container that has no run yet, with these GPUs."""

    state_dir = "/s"
    hello = HELLO
    target = Target(host=Host(name="pve", address="10.1.2.6"), ct=200)
    target_key = target.key
    ct = 200

    def __init__(self, gpu: dict[str, Any]) -> None:
        self.gpu = gpu
        self.asked: list[str] = []

    def client(self) -> Guest:
        return self

    def call(
        self, verb: str, request: Mapping[str, object], *, timeout_s: float, **more: object
    ) -> list[dict[str, Any]]:
        self.asked.append(verb)
        if verb == "look":
            raise GuestRefused("no run", reason="not_found")
        if verb == "capture":
            return [{"type": "capture", "exists": False}, self.gpu, {"type": "end"}]
        return [{"type": "started", "attempt": request["attempt"], "session": "r1"}]


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    with Record.open(tmp_path / "record.sqlite3") as record:
        yield record


def launch(record: Record, guest: Guest, gpus: tuple[int, ...] | None) -> None:
    spec = RunSpec(run="r1", command=("train",), gpus=gpus)
    Operator(guest, record, FakeClock()).launch(spec, {}, playbook=None)  # type: ignore[arg-type]


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(record):
    guest = Guest(TWO_GPUS)
    with pytest.raises(ConfigError, match=r"10.1.2.6/200: gpus 0,99: no GPU 99 there; it has 0, 1; name"):
        launch(record, guest, (0, 99))
    assert guest.asked == ["look", "capture"]
    assert record.runs() == []


@pytest.mark.parametrize("gpu", [TWO_GPUS, STUCK, NO_DRIVER], ids=["there", "stuck", "no driver"])
def test_gpus_that_are_there_or_cannot_be_read_are_not_refused(record, gpu):
    guest = Guest(gpu)
    launch(record, guest, (1, 0))
    assert guest.asked == ["look", "capture", "start"]


def test_a_run_that_names_no_gpus_asks_for_none(record):
    guest = Guest(TWO_GPUS)
    launch(record, guest, None)
    assert guest.asked == ["look", "start"]


@pytest.mark.parametrize(
    ("settings", "reached", "is_told"),
    [
        ((("total_steps", "400"),), 500, True),
        ((("total_steps", "400"),), 400, True),
        ((("total_steps", "400"),), 399, False),
        ((("total_steps", "400"),), None, False),
        ((("total_steps", "many"),), 500, False),
        ((), 500, False),
    ],
)
def test_a_run_that_has_come_as_far_as_it_may_has_nothing_left(settings, reached, is_told):
    words = nothing_left(RunSpec(run="r1", config="tiny", overrides=settings), reached)
    assert (words is not None) is is_told
    assert nothing_left(RunSpec(run="r1", command=("train",), overrides=settings), reached) is None
