"""The service on a stage: a real record, a real watch of runs that have ended, cards as a test wants them."""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from starlette.testclient import TestClient

from orchestrator.clock import SystemClock
from orchestrator.fleet import Asking, Board, FleetWatch, GpuCard, NextAct, RunCard, Ways
from orchestrator.playbook import load, shipped
from orchestrator.record import Record
from orchestrator.serve.app import create_app
from orchestrator.serve.assets import Assets
from orchestrator.serve.guard import Rules
from orchestrator.serve.hub import Hub
from orchestrator.serve.logs import LogReader
from orchestrator.serve.parts import Parts, fleet_health
from orchestrator.serve.token import Token
from orchestrator.types.decision import ActKind
from orchestrator.types.failure import Diagnosis, Evidence, FailureClass, Role, RunState
from orchestrator.types.seen import Gpu
from orchestrator.watch.events import Level, WatchEvent
from tests.builders import NOW

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from starlette.types import ASGIApp

    from orchestrator.record import RunRow
    from orchestrator.site import Site

CLOCK = SystemClock()
SECRET = "a-token-of-a-test-1234567890"
HOSTILE = "<script>alert(1)</script>\x1b[31m"
LEAKED = "hf_" + "a1B2" * 9
WHERE = "http://127.0.0.1:8765"


def make_card(run_id: int = 1, **changes: Any) -> RunCard:
    return RunCard(
        **{
            "id": run_id, "name": f"run-{run_id}", "target": "pve/200", "state": RunState.HEALTHY,
            "looked_at": NOW, "is_acting": True, **changes,
        }
    )  # fmt: skip


def full_card(run_id: int = 1, **changes: Any) -> RunCard:
    """A card with every field set."""
    gpu = Gpu(
        index=0, name="NVIDIA H200", memory_used_bytes=5 << 30, memory_total_bytes=139 << 30,
        utilization_pct=97.0, power_w=650.5, temperature_c=61.0, pids=(7, 8), problem=HOSTILE,
    )  # fmt: skip
    act = NextAct(
        kind=ActKind.RELAUNCH_WITH, reason=f"because {HOSTILE}", rule="oom_cuda", attempts_left=2,
        due_at=NOW + timedelta(seconds=30), changes=(("batch", "8"), ("HF_TOKEN", LEAKED)),
    )  # fmt: skip
    fields = {
        "state": RunState.DEAD, "summary": f"died {LEAKED} {HOSTILE}", "failure": FailureClass.OOM_CUDA,
        "attempt": 2, "phase": "train", "step": 40, "total_steps": 100, "loss": 2.5, "tokens_per_s": 1234.5,
        "step_s": 0.5, "checkpoint_step": 30, "started_at": NOW, "moved_at": NOW,
        "clock_skew_s": -1.5, "blind": "no route",
        "next_act": act, "is_acting": True, "is_busy": True, "remark": "the disk fills", "holders": "pid 7",
        "gpus": (GpuCard(gpu=gpu, is_own=True),), "gpu_problem": "no driver",
    }  # fmt: skip
    return make_card(run_id, **{**fields, **changes})


def told(text: str = "it died", run: str = "run-1", **changes: Any) -> WatchEvent:
    fields: dict[str, Any] = {
        "kind": "diagnosis", "at": NOW, "run": run, "target": "pve/200", "attempt": 1, "level": Level.BAD,
        "detail": {"confidence": math.nan, "cause": LEAKED, "deep": [{"a": (1, HOSTILE)}]},
    }  # fmt: skip
    return WatchEvent(text=text, **{**fields, **changes})


def no_site(row: RunRow) -> Site:
    raise AssertionError(f"{row.name}: nothing is to be opened")


@dataclass
class Stage:
    """The parts, with what a test changes about them."""

    record: Record
    board: Board
    fleet: FleetWatch
    parts: Parts
    cards: list[RunCard] = field(default_factory=list)

    @cached_property
    def app(self) -> ASGIApp:
        return create_app(self.parts)

    def show(self, *cards: RunCard) -> None:
        """Have these cards and no others."""
        self.cards = list(cards)
        self.board.draw(lambda: tuple(self.cards))
        self.board.publish()

    def client(self, **headers: str) -> TestClient:
        return TestClient(
            self.app, base_url=WHERE, headers=headers, client=("127.0.0.1", 50000),
            follow_redirects=False, raise_server_exceptions=False,
        )  # fmt: skip

    def signed_in(self) -> TestClient:
        """A browser after its login, with what acts need."""
        client = self.client()
        done = client.post("/login", data={"token": SECRET}, headers={"origin": WHERE})
        assert done.status_code == 303
        client.headers.update({"origin": WHERE, "sec-fetch-site": "same-origin"})
        client.headers["x-csrf-token"] = client.get("/api/v1/session").json()["csrf"]
        return client


@contextmanager
def staged(
    home: Path, *, reads_freely: bool = True, acting: bool = True, begins_anew: bool = False
) -> Iterator[Stage]:
    """Runs `run-1`, `run-2`, ... of the record have ended, so that nothing is opened for them."""
    with Record.open(home / "record.sqlite3") as record:
        board = Board(CLOCK)
        ways = Ways(site=no_site, playbook=lambda _row: load(shipped()), shipped=lambda: load(shipped()))
        fleet = FleetWatch(record, board, CLOCK, ways, acting=acting, begins_anew=begins_anew)
        rules = Rules(
            token=Token(SECRET, home / "token"),
            reads_freely=reads_freely,
            names=frozenset({"box.lan", "localhost"}),
        )
        parts = Parts(
            fleet=fleet, record=record, clock=CLOCK, asking=Asking(record, CLOCK, no_site),
            hub=Hub(board, CLOCK, lambda: fleet_health(fleet, CLOCK), acting=acting),
            logs=LogReader(no_site, CLOCK), rules=rules, assets=Assets(), acting=acting,
        )  # fmt: skip
        yield Stage(record, board, fleet, parts)
        fleet.stop()


def begin(stage: Stage) -> None:
    """Start the watch, and wait for its first turn."""
    stage.fleet.start()
    deadline = time.monotonic() + 60
    while stage.fleet.turned_at is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def add_run(stage: Stage, name: str = "run-1", *, attempts: int = 2) -> RunRow:
    """A run with a story: attempts that died, and one that finished."""
    record = stage.record
    row = record.save_run(name, {"host": None, "ct": None}, "pve/200", {"config": "tiny"}, NOW)
    for n in range(1, attempts + 1):
        at = NOW + timedelta(minutes=10 * n)
        record.save_attempt(row.id, n, started_at=at, by="watch", changes={"batch": "8", "api_key": LEAKED})
        is_last = n == attempts
        failure = FailureClass.COMPLETED if is_last else FailureClass.OOM_CUDA
        state = RunState.FINISHED if is_last else RunState.DEAD
        evidence = Evidence(source="log", text=f"line {HOSTILE} {LEAKED}", role=Role.ROOT, offset=12, rank=3)
        found = Diagnosis(
            state=state,
            failure=failure,
            summary=f"summary {HOSTILE}",
            evidence=(evidence,),
            cascades=(evidence,),
        )
        record.add_metrics(
            row.id, n,
            ({"kind": "train", "step": step, "at": at.timestamp() + step, "loss": 5.0 / step,
              "tokens_per_s": 100.0, "step_s": 0.1} for step in range(1, 21)),
            at,
        )  # fmt: skip
        record.add_gpus(row.id, n, [Gpu(index=0, memory_used_bytes=1 << 30, utilization_pct=50.0)], at)
        record.diagnosis(row.id, n, found, at + timedelta(minutes=5))
        action = record.intend(row.id, n, "relaunch", f"reason {LEAKED}", {}, at + timedelta(minutes=5))
        record.outcome(action, "done", at + timedelta(minutes=6), error="late" if is_last else None)
        record.save_attempt(
            row.id, n, ended_at=at + timedelta(minutes=5), failure=failure, first_step=0, last_step=20,
            exit_code=0 if is_last else 1, environment={"torch": f"2.{n}", "env_names": ["A"]},
            spec={"config": "tiny"},
        )  # fmt: skip
        record.transition(row.id, n, RunState.HEALTHY, state, "it ended", at + timedelta(minutes=5))
    return next(each for each in record.runs() if each.id == row.id)
