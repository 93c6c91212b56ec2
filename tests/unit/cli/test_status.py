"""status: the GPUs come with the look that asks for them, and with no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cli import looking
from orchestrator.cli.context import SETTINGS
from orchestrator.clock import SystemClock
from orchestrator.guest import gpu
from orchestrator.guest import look as guest_look
from orchestrator.observe import look
from orchestrator.types.failure import Diagnosis, RunState
from orchestrator.wire import pack_bytes
from tests.builders import run_message
from tests.unit.watch.bench import HELLO, FakeClock

READING = {
    "gpus": [{"index": n, "utilization_pct": 50.0} for n in range(2)],
    "source": "nvml",
    "problem": None,
}


class Place:
    """A container that answers a look as the contract says."""

    state_dir, hello = "/s", HELLO

    def __init__(self, gpus: list[int] | None = None, *more: dict[str, Any]) -> None:
        self._spec = {"run": "r1", "attempt": 1, "gpus": gpus}
        self._more = more

    def client(self) -> Place:
        return self

    def call(self, verb: str, request: Any, *, timeout_s: float) -> list[Any]:
        told = [{"type": "gpu", **READING}] if request["gpus"] else []
        return [{**run_message(spec=self._spec), "run": request["run"]}, *self._more, *told, {"type": "end"}]


@pytest.mark.parametrize(
    ("asks", "named", "shown"),
    [(True, None, ["GPU0 50%", "GPU1 50%"]), (True, [1], ["GPU1 50%"]), (False, None, [])],
)
def test_a_status_tells_the_gpus_of_its_run_if_asked(asks, named, shown):
    row: Any = SimpleNamespace(name="r1", target_key="pve/200")
    tracker = look(Place(named), "r1", SystemClock(), gpus=asks)
    diagnosis = Diagnosis(state=RunState.HEALTHY, failure=None, summary="alive")
    assert looking._status_body(row, tracker, diagnosis)["gpus"] == shown


@pytest.mark.parametrize(
    ("log", "free", "state", "is_told"),
    [
        (2 * 10**9, 4 * 10**9, RunState.HEALTHY, True),
        (2 * 10**9, 4 * 10**9, RunState.FINISHED, False),  # it writes no more
        (2 * 10**9, 4 * 10**12, RunState.HEALTHY, False),
        (2 * 10**5, 4 * 10**9, RunState.HEALTHY, False),
    ],
)
def test_a_status_tells_when_the_disk_is_full_of_the_log(log, free, state, is_told, monkeypatch):
    clock = FakeClock()
    clock.sleep(3600 - 60 - 30)  # the attempt began a minute before, by the container's clock
    monkeypatch.setattr(SETTINGS, "clock", clock)
    last = {"type": "log", "run": "r1", "attempt": 1, "offset": log - 1, "data": pack_bytes(b"\n")}
    disk = {"type": "disk", "free_bytes": free, "total_bytes": free, "log_bytes": log, "logs": {"r1": log}}
    place = Place(None, last, disk)
    place.hello = {**HELLO, "now": clock.now().timestamp() + 30}  # the container's clock is ahead
    tracker = look(place, "r1", clock)
    row: Any = SimpleNamespace(name="r1", target_key="pve/200")
    body = looking._status_body(row, tracker, Diagnosis(state=state, failure=None, summary="."))
    assert (body["log_bytes"], body["disk_free_bytes"]) == (log, free)
    told = body["log_forecast"]
    assert (told is not None) == is_told
    if told:
        assert (told["bytes_per_hour"], told["full_in_s"]) == (2 * 10**9, 7200)
        assert "the log grows 2.0 GB/h" in told["text"]


@pytest.mark.parametrize(("asked", "kinds"), [({"gpus": True}, ["gpu", "end"]), ({}, ["end"])])
def test_the_guest_reads_the_gpus_only_if_it_is_asked(monkeypatch, tmp_path, asked, kinds):
    (tmp_path / "runs" / "r1" / "attempts" / "1").mkdir(parents=True)
    monkeypatch.setattr(gpu, "once", lambda: READING)
    sent: list[str] = []
    link: Any = SimpleNamespace(send=lambda kind, fields: sent.append(kind))
    guest_look.run("look", {"state_dir": str(tmp_path), "run": "r1", "log_bytes": 0, **asked}, link)
    assert [kind for kind in sent if kind in ("gpu", "end")] == kinds
