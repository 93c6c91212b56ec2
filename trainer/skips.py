"""skips.jsonl: the steps that were left out, left out again on a replay and in a later attempt."""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING

from trainer.console import warn
from trainer.files import SCHEMA, sync_directory

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.guard import Reason


class Skips:
    """The steps of `path` that were left out on the data of `fingerprint`; on other data they mean nothing.

    Every rank reads the file at its start and records the same steps; the leader alone writes.
    """

    def __init__(self, path: Path, fingerprint: str, *, leader: bool) -> None:
        self._path = path
        self._fingerprint = fingerprint
        self._leader = leader
        self._steps = self._read()

    def __contains__(self, step: int) -> bool:
        return step in self._steps

    def __len__(self) -> int:
        return len(self._steps)

    def record(self, step: int, reason: Reason, *, loss: float, grad_norm: float) -> None:
        """Remember a step, durably.

        Raises:
            OSError: no space, or the file cannot be written.
        """
        self._steps.add(step)
        if not self._leader:
            return
        value = {
            "schema": SCHEMA,
            "step": step,
            "reason": reason.value,
            "loss": loss if math.isfinite(loss) else None,
            "grad_norm": grad_norm if math.isfinite(grad_norm) else None,
            "data": self._fingerprint,
        }
        with self._path.open("ab+", buffering=0) as file:
            torn = file.seek(0, os.SEEK_END) and not _ends_a_line(file.fileno(), file.tell())
            file.write(b"\n" * bool(torn) + json.dumps(value, allow_nan=False).encode() + b"\n")
            os.fsync(file.fileno())
        sync_directory(self._path.parent)

    def _read(self) -> set[int]:
        try:
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return set()
        steps = set()
        for number, line in enumerate(lines, start=1):
            try:
                value = json.loads(line) if line.strip() else {}
                if value.get("data") == self._fingerprint:
                    steps.add(int(value["step"]))
            except (ValueError, KeyError, TypeError, AttributeError):
                if self._leader:  # a kill in the middle of a write leaves half a line
                    warn(f"{self._path}: line {number} is not a skipped step; it is passed over")
        return steps


def _ends_a_line(descriptor: int, size: int) -> bool:
    return os.pread(descriptor, 1, size - 1) == b"\n"
