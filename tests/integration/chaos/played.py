"""What is played and what became of it: the playbook, the watches, and everything that the judge wants."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.types.failure import FailureClass

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.chaos.arena import Place
    from tests.integration.chaos.nursery import Child
    from tests.integration.chaos.schedule import Schedule

# A step stands for a second of a real run; a hang is told after that many. Above what a freeze may last.
HANG_S = 22
_NEVER = frozenset({FailureClass.HEALTHY, FailureClass.COMPLETED, FailureClass.KILLED_BY_USER})

PLAYBOOK = (
    "extends: default\nbackoff: [0s, 1s]\njitter: 0\ngrace: 0s\nmax_attempts_per_day: 200\n"
    "crash_loop: {deaths: 100, within: 1h}\nmin_free_bytes: 1 MiB\n"
    f"limits: {{init: {HANG_S}s, train: {HANG_S}s, checkpoint: {HANG_S}s}}\nrules:\n"
    + "".join(
        f"  {failure.value}: {{act: relaunch, attempts: 100, why: the suite wants every run at its end}}\n"
        for failure in FailureClass
        if failure not in _NEVER
    )
)


@dataclass
class Told:
    """A watch and which record it keeps: `a` is the launcher's own, `b` that of another machine."""

    child: Child
    record: str
    is_killed: bool = False
    kill_at_line: int | None = None
    again_at: float | None = None  # when its successor starts

    def events(self) -> list[dict[str, Any]]:
        """Return what it told; a last line that was cut by a kill is none."""
        lines = self.child.out.read_bytes().split(b"\n")[:-1]
        return [json.loads(line) for line in lines]

    @property
    def num_lines(self) -> int:
        """How many lines it has told."""
        return self.child.out.read_bytes().count(b"\n")


@dataclass
class Played:
    """What became of a schedule, for the judge."""

    schedule: Schedule
    place: Place
    home: Path
    run: str
    watches: list[Told] = field(default_factory=list)
    done: list[tuple[float, str]] = field(default_factory=list)  # what was done, on the trainer's clock
    problems: list[str] = field(default_factory=list)
    num_at_stop: int | None = None  # attempts there were when the user's stop had returned
    took_s: float = 0.0

    def record_path(self, which: str) -> Path:
        """Return the record's file."""
        return self.home / which / "state" / "dflashctl" / "record.sqlite3"

    @property
    def attempts(self) -> list[int]:
        """The attempts that there are in the run directory."""
        folder = self.place.runs / self.run / "attempts"
        return sorted(int(path.name) for path in folder.iterdir()) if folder.is_dir() else []

    def witness(self) -> list[dict[str, Any]]:
        """Return what the trainers wrote down, in order."""
        path = self.place.witness / f"{self.run}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
