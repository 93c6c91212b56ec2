"""status: the GPUs come with the look that asks for them, and with no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cli import looking
from orchestrator.clock import SystemClock
from orchestrator.guest import gpu
from orchestrator.guest import look as guest_look
from orchestrator.observe import look
from orchestrator.types import Diagnosis, RunState
from tests.builders import run_message
from tests.unit.watch.bench import HELLO

READING = {
    "gpus": [{"index": n, "utilization_pct": 50.0} for n in range(2)],
    "source": "nvml",
    "problem": None,
}


class Place:
    """A container that answers a look as the contract says."""

    state_dir, hello = "/s", HELLO

    def __init__(self, gpus: list[int] | None = None) -> None:
        self._spec = {"run": "r1", "attempt": 1, "gpus": gpus}

    def client(self) -> Place:
        return self

    def call(self, verb: str, request: Any, *, timeout_s: float) -> list[Any]:
        told = [{"type": "gpu", **READING}] if request["gpus"] else []
        return [{**run_message(spec=self._spec), "run": request["run"]}, *told, {"type": "end"}]


@pytest.mark.parametrize(
    ("asks", "named", "shown"),
    [(True, None, ["GPU0 50%", "GPU1 50%"]), (True, [1], ["GPU1 50%"]), (False, None, [])],
)
def test_a_status_tells_the_gpus_of_its_run_if_asked(asks, named, shown):
    row: Any = SimpleNamespace(name="r1", target_key="pve/200")
    tracker = look(Place(named), "r1", SystemClock(), gpus=asks)
    diagnosis = Diagnosis(state=RunState.HEALTHY, failure=None, summary="alive")
    assert looking._status_body(row, tracker, diagnosis)["gpus"] == shown


@pytest.mark.parametrize(("asked", "kinds"), [({"gpus": True}, ["gpu", "end"]), ({}, ["end"])])
def test_the_guest_reads_the_gpus_only_if_it_is_asked(monkeypatch, tmp_path, asked, kinds):
    (tmp_path / "runs" / "r1" / "attempts" / "1").mkdir(parents=True)
    monkeypatch.setattr(gpu, "once", lambda: READING)
    sent: list[str] = []
    link: Any = SimpleNamespace(send=lambda kind, fields: sent.append(kind))
    guest_look.run("look", {"state_dir": str(tmp_path), "run": "r1", "log_bytes": 0, **asked}, link)
    assert [kind for kind in sent if kind in ("gpu", "end")] == kinds
