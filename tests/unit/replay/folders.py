"""Recordings made by hand, as `record` writes them, and what is told of them."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from orchestrator.replay.judge import shipped_playbook
from orchestrator.replay.player import Told, play
from orchestrator.replay.recording import read_recording

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.playbook import Playbook

BEGAN = datetime(2026, 11, 29, 12, 0, tzinfo=timezone.utc)
FX = "RuntimeError: Detected that you are using FX to symbolically trace a dynamo-optimized function."
TRACE = f'Traceback (most recent call last):\n  File "/srv/t.py", line 3, in step\n    f(x)\n{FX}\n'
BOOT = {"boot_id": "b", "pid1_start_ticks": 7}


def at(seconds: float) -> str:
    return (BEGAN + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def beat(seconds: float, step: int, **fields: Any) -> dict[str, Any]:
    return {"schema": 1, "phase": "train", "step": step, "at": at(seconds), **fields}


class Folder:
    """Makes a recording by hand, as `record` writes it."""

    def __init__(self, place: Path, **meta: Any) -> None:
        self.place = place
        self.meta = {"schema": 1, "run": "b32", "recorded_at": at(9000), "attempts": [], **meta}

    def attempt(self, number: int, *, begin: float, log: str = "", **files: Any) -> None:
        folder = self.place / "attempts" / str(number)
        folder.mkdir(parents=True)
        info = {"schema": 1, "attempt": number, "trainer_pid": 7, "started_at": at(begin), **BOOT}
        files = {"attempt": info, "run": {"schema": 1, "attempt": number, "kind": "trainer"}, **files}
        for name, value in files.items():
            if isinstance(value, list):
                text = "".join(json.dumps(row) + "\n" for row in value)
                (folder / f"{name}.jsonl").write_text(text)
            else:
                (folder / f"{name}.json").write_text(json.dumps(value))
        if log:
            (folder / "log").write_text(log)

    def told(self, playbook: Playbook | None = None) -> list[Told]:
        self.place.mkdir(exist_ok=True)
        (self.place / "recording.json").write_text(json.dumps(self.meta))
        return list(play(read_recording(self.place), playbook or shipped_playbook()))


def ended(seconds: float, code: int | None, signal: int | None = None) -> dict[str, Any]:
    return {"schema": 1, "code": code, "signal": signal, "at": at(seconds), "duration_s": seconds}


def said(told: list[Told], kind: str) -> list[str]:
    return [each.text for each in told if each.kind == kind]


def classes(told: list[Told]) -> list[str | None]:
    return [each.detail["class"] for each in told if each.kind == "diagnosis"]
