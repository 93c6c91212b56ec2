"""What is new in one run: its `run` line, then its attempts in order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.guest import checkpoints, clock, files, liveness, processes
from orchestrator.guest.feed import AttemptFeed, Line
from orchestrator.guest.masks import RunMasks

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.guest.paths import RunDir

CHECKPOINTS_EVERY_S = 1.0
# Workers come and go; a run that lives anyway does not send its line for each of them.
PIDS_EVERY_S = 5.0
MAX_STOP_BYTES = 300_000  # beside the spec in one line

Table = Mapping[int, processes.Process]


@dataclass
class RunFeed:
    """One run; `wants_scan` asks the watch for a process table at the next turn."""

    run: RunDir
    feeds: list[AttemptFeed] = field(default_factory=list)
    wants_scan: bool = True
    is_final: bool = False  # one look: an unended last line is given too
    _attempts: list[int] = field(default_factory=list)
    _stamps: dict[str, files.Stamp | None] = field(default_factory=dict)
    _files: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    _alive: liveness.Liveness = field(default=liveness.UNKNOWN)
    _is_alive_known: bool = False
    _checkpoint: tuple[int | None, int | None] = (None, None)
    _checkpoint_due: float = 0.0
    _sent: dict[str, Any] = field(default_factory=dict)
    _sent_at: float = 0.0
    _masks: RunMasks = field(init=False)

    def __post_init__(self) -> None:
        self._masks = RunMasks(self.run)

    @property
    def newest(self) -> int | None:
        """The number of the newest attempt."""
        return self._attempts[-1] if self._attempts else None

    @property
    def is_quiet(self) -> bool:
        """Nothing of the run lives, as far as the last look showed."""
        return self._is_alive_known and self._alive.is_gone and not self._alive.supervisor

    @property
    def has_more(self) -> bool:
        """The last turn gave only a piece of what is there."""
        return bool(self.feeds) and self.feeds[0].has_more

    def follow(self, attempt: int | None, log_offset: int, metrics_offset: int) -> None:
        """Begin again at `attempt` (None: the newest); a negative `log_offset` counts from the end."""
        self._attempts = self.run.attempts()
        first = attempt if attempt is not None else self.newest
        self.feeds = []
        if first is not None:
            if log_offset < 0:
                log_offset = max(0, files.size_of(self.run.attempt(first) / "log") + log_offset)
            self.feeds = [self._feed(first, log_offset, metrics_offset)]
            self.feeds += [self._feed(n) for n in self._attempts if n > first]
        self._sent = {}
        self.wants_scan = True

    def _feed(self, number: int, log_offset: int = 0, metrics_offset: int = 0) -> AttemptFeed:
        feed = AttemptFeed(self.run, number, self._masks, log_offset, metrics_offset)
        feed.is_final = self.is_final
        return feed

    def turn(self, table: Table | None, tags: set[str] | None) -> Iterator[Line]:
        """Give what is new; `table` if there is a fresh one, `tags` the run directories with a session."""
        was_wanted, self.wants_scan = self.wants_scan, False
        self._look_at_attempts()
        self._look_at_files()
        # Files younger than the table (an attempt that has just begun) are not judged by it.
        self.wants_scan = self._is_alive_known and (self.wants_scan or (was_wanted and table is None))
        self._look_at_life(table)
        # That nothing lives is told after the last byte and exit.json: no end is seen before its cause.
        yield from self._run_line(tags, is_settled=False)
        yield from self._attempt_lines()
        yield from self._run_line(tags, is_settled=all(feed.is_drained for feed in self.feeds))

    def _attempt_lines(self) -> Iterator[Line]:
        while self.feeds:
            feed = self.feeds[0]
            had_ended = feed.has_ended
            yield from feed.turn()
            if feed.has_ended and not had_ended:
                self.wants_scan = True
            if len(self.feeds) == 1 or not feed.is_drained:
                return
            self.feeds.pop(0)  # a newer attempt is there, so this one can grow no more

    def _look_at_attempts(self) -> None:
        if not self._has_changed("attempts", self.run.attempts_dir) and self._attempts:
            return
        attempts = self.run.attempts()
        last = self.feeds[-1].number if self.feeds else 0
        self.feeds += [self._feed(n) for n in attempts if n > last]
        if attempts != self._attempts:
            self._attempts = attempts
            self.wants_scan = True

    def _look_at_files(self) -> None:
        if self.newest is None:
            self._files, self._stamps = {}, {}
            return
        directory = self.run.attempt(self.newest)
        for key, path in (
            ("spec", directory / "run.json"),
            ("attempt_info", directory / "attempt.json"),
            ("stop", self.run.stop),
        ):
            if self._has_changed(key, path):
                found = files.read_json(path)
                self._files[key] = _fitting(found) if key == "stop" else found
                self.wants_scan = True
        if clock.ticking() >= self._checkpoint_due:
            self._look_at_checkpoint()

    def _look_at_checkpoint(self) -> None:
        self._checkpoint_due = clock.ticking() + CHECKPOINTS_EVERY_S
        step = checkpoints.newest(self._checkpoint_dir())
        if step != self._checkpoint[0]:
            size = None if step is None else checkpoints.num_bytes(self._checkpoint_dir() / f"step-{step}")
            self._checkpoint = (step, size)

    def _checkpoint_dir(self) -> Path:
        return checkpoints.directory(self.run, self._files.get("spec"))

    def _has_changed(self, key: str, path: Path) -> bool:
        found = files.stamp(path)
        if found == self._stamps.get(key):
            return False
        self._stamps[key] = found
        return True

    def _look_at_life(self, table: Table | None) -> None:
        if table is not None:
            self._alive = liveness.look(self.run, self._attempts, table)
            self._is_alive_known = True
            return
        trainer = (self._files.get("attempt_info") or {}).get("trainer_pid")
        if trainer in self._alive.pids:
            row = processes.read_stat(trainer)
            self.wants_scan = self.wants_scan or row is None or row.is_zombie
        if liveness.is_locked(self.run, self._attempts) != self._alive.lock_held:
            self.wants_scan = True

    def _run_line(self, tags: set[str] | None, *, is_settled: bool) -> Iterator[Line]:
        if not self._is_alive_known or self.wants_scan:
            return
        spec = self._files.get("spec")
        alive: dict[str, Any] | None = self._alive.fields(
            session=None if tags is None else str(self.run.path) in tags
        )
        if self._alive.is_gone and not is_settled:
            alive = self._sent.get("alive")
        elif self._alive.is_gone and alive != self._sent.get("alive"):
            # A budget is refilled by the last checkpoint: an end is not told with an older one.
            self._look_at_checkpoint()
        line = {
            "run": self.run.name,
            "attempts": self._attempts,
            "attempt": self.newest,
            "spec": files.whole(spec) if spec else None,
            "attempt_info": self._files.get("attempt_info"),
            "alive": alive,
            "stop": self._masked_stop(),
            "checkpoint_step": self._checkpoint[0],
            "checkpoint_bytes": self._checkpoint[1],
        }
        if line == self._sent or (
            self._is_only_workers(line) and clock.ticking() < self._sent_at + PIDS_EVERY_S
        ):
            return
        self._sent, self._sent_at = line, clock.ticking()
        yield "run", line

    def _masked_stop(self) -> dict[str, Any] | None:
        """Return the intent to stop with its reason masked; the spec stays as it is, for it is run again."""
        stop = self._files.get("stop")
        if stop is None or not isinstance(stop.get("reason"), str):
            return stop
        return {**stop, "reason": self._masks.current().text(stop["reason"])}

    def _is_only_workers(self, line: dict[str, Any]) -> bool:
        """Whether nothing changed but which processes there are, with the trainer among them."""
        before, alive = self._sent.get("alive"), line["alive"]
        if not before or not alive:
            return False
        trainer = (line["attempt_info"] or {}).get("trainer_pid")
        same = {**line, "alive": {**alive, "pids": before["pids"]}} == self._sent
        return same and trainer in alive["pids"] and trainer in before["pids"]


def _fitting(stop: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return stop.json small enough for a line: what follows is left out where it is far too long, never cut.

    The near side then calls a person, for it knows that a relaunch was meant; a line too long would be none.
    """
    if stop is None or len(json.dumps(stop)) <= MAX_STOP_BYTES:
        return stop
    return {key: value for key, value in stop.items() if key != "then"}
