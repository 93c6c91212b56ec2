"""Builders whose defaults are a healthy run; a test names only what matters to it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from orchestrator.clock import timestamp
from orchestrator.types.seen import Absent, ExitRecord, Gpu, Heartbeat, Liveness, Phase, Present
from orchestrator.types.snapshot import LogReading, Snapshot

NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=timezone.utc)
ALIVE = Liveness(lock_held=True, pids=(101, 102), supervisor=True, session=True)
GONE = Liveness(lock_held=False, pids=(), supervisor=False, session=True)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def make_heartbeat(**changes: Any) -> Heartbeat:
    fields: dict[str, Any] = {
        "phase": Phase.TRAIN,
        "step": 40,
        "at": ago(0.5),
        "total_steps": 100,
        "loss": 2.5,
    }
    return Heartbeat(**{**fields, **changes})


def make_exit(code: int | None = 1, signal: int | None = None) -> ExitRecord:
    return ExitRecord(code=code, signal=signal, at=ago(0.2), duration_s=60.0)


def make_snapshot(**changes: Any) -> Snapshot:
    fields: dict[str, Any] = {
        "now": NOW,
        "run": "dflash",
        "attempt": 1,
        "liveness": Present(ALIVE),
        "heartbeat": Present(make_heartbeat()),
        "exit": Absent(),
        "last_words": Absent(),
        "result": Absent(),
        "log": LogReading(read_bytes=100, last_step=40),
        "gpus": Present((make_gpu(0),)),
        "started_at": ago(60),
        "heartbeat_seen_at": ago(0.5),
        "container": "running",
        "disk_free_bytes": 10 << 30,
    }
    return Snapshot(**{**fields, **changes})


def make_gpu(index: int, **changes: Any) -> Gpu:
    fields: dict[str, Any] = {"index": index, "memory_used_bytes": 0, "memory_total_bytes": 140 << 30}
    return Gpu(**{**fields, **changes})


def heartbeat_json(step: int = 40, phase: str = "train", **changes: Any) -> dict[str, Any]:
    body = {"schema": 1, "phase": phase, "step": step, "at": timestamp(NOW), "recompiles": 0}
    return {**body, **changes}


def run_message(attempt: int = 1, *, alive: bool = True, **changes: Any) -> dict[str, Any]:
    body: dict[str, Any] = {
        "type": "run",
        "run": "dflash",
        "attempts": list(range(1, attempt + 1)),
        "attempt": attempt,
        "spec": {"run": "dflash", "kind": "trainer"},
        "attempt_info": {
            "boot_id": "b", "pid1_start_ticks": 5, "supervisor_start_ticks": 50,
            "started_at": timestamp(ago(60)),
        },
        "alive": {"lock_held": alive, "pids": [101] if alive else [], "supervisor": alive, "session": True},
        "stop": None,
        "checkpoint_step": 25,
        "checkpoint_bytes": 1000,
    }  # fmt: skip
    return {**body, **changes}


def attempt_message(kind: str, value: Any, attempt: int = 1) -> dict[str, Any]:
    return {"type": kind, "run": "dflash", "attempt": attempt, "value": value}
