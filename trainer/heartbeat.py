"""heartbeat.json: what the trainer is doing now. The main thread alone writes it, so a hang is visible."""

from __future__ import annotations

import os
import time
from enum import Enum
from typing import TYPE_CHECKING

from trainer.clock import utc_now
from trainer.files import write_json

if TYPE_CHECKING:
    from pathlib import Path

BEAT_INTERVAL_S = 0.5


class Phase(str, Enum):
    """What the trainer is doing; a watcher gives each its own stall limit."""

    INIT = "init"
    LOAD = "load"
    COMPILE = "compile"
    WARMUP = "warmup"
    TRAIN = "train"
    EVAL = "eval"
    CHECKPOINT = "checkpoint"
    EXPORT = "export"
    DONE = "done"


class Heartbeat:
    """The present state of the attempt, written at every phase change and each half second between."""

    def __init__(self, path: Path | None) -> None:
        """Of the leader, with a path; other ranks only remember where they stand."""
        self._path = path
        self._written_at = float("-inf")
        self.phase = Phase.INIT
        self.step = 0
        self.total_steps: int | None = None
        self.loss: float | None = None
        self.tokens_per_s: float | None = None
        self.step_s: float | None = None
        self.recompiles = 0
        self.skipped_steps = 0
        self.rollbacks = 0
        self.peak_memory_bytes: int | None = None
        self.resumed_from_step: int | None = None
        self.checkpoint_step: int | None = None

    def enter(self, phase: Phase) -> None:
        """Change the phase and tell it at once."""
        self.phase = phase
        self._write()

    def beat(self) -> None:
        """Say that the trainer is alive, unless it was said within the last half second."""
        if time.monotonic() - self._written_at >= BEAT_INTERVAL_S:
            self._write()

    def _write(self) -> None:
        self._written_at = time.monotonic()
        if self._path is None:
            return
        value = {
            "phase": self.phase.value,
            "step": self.step,
            "total_steps": self.total_steps,
            "loss": self.loss,
            "tokens_per_s": self.tokens_per_s,
            "step_s": self.step_s,
            "recompiles": self.recompiles,
            "skipped_steps": self.skipped_steps,
            "rollbacks": self.rollbacks,
            "peak_memory_bytes": self.peak_memory_bytes,
            "resumed_from_step": self.resumed_from_step,
            "checkpoint_step": self.checkpoint_step,
            "pid": os.getpid(),
            "at": utc_now(),
        }
        write_json(self._path, value)
