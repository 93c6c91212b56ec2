"""The course of a run over its steps and attempts, and the patterns in it that are news. Pure.

A watch and a replay look at it alike: now and then while the attempt lives, and at its death.
"""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Any

from orchestrator.classify.history import (
    AGAIN_WELL,
    Pattern,
    StepTime,
    crash_loop,
    no_progress,
    resumed_from_zero,
    slowdown,
    stragglers,
    throughput_regression,
)
from orchestrator.types.failure import FailureClass, RunState
from orchestrator.wire import finite_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

    from orchestrator.ledger import Ledger
    from orchestrator.types.seen import Heartbeat

LOOK_EVERY_S = 30.0
MAX_ROWS = 1_500
_ALIVE = frozenset({RunState.HEALTHY, RunState.UNSUPERVISED})
_SLOW = FailureClass.THROUGHPUT_REGRESSION


class Course:
    """One run's. Steps are compared only with steps of attempts that did the same work."""

    def __init__(self) -> None:
        self.attempt: int | None = None
        self._rows: deque[StepTime] | None = None
        self._last_step = -1
        self._is_new = False
        self._looked_at: datetime | None = None
        self._told: set[FailureClass] = set()

    def begin(self, attempt: int) -> None:
        """A new attempt: what was told of the old one may be told of it, too."""
        self.attempt, self._rows = attempt, None
        self._told.clear()

    @property
    def is_loaded(self) -> bool:
        """Whether the steps that were kept were given."""
        return self._rows is not None

    def load(self, kept: Iterable[StepTime]) -> None:
        """Take the kept steps of this attempt and of those before it, oldest first."""
        self._rows, self._is_new = deque(kept, maxlen=MAX_ROWS), True
        self._last_step = max((row.step for row in self._rows if row.attempt == self.attempt), default=-1)

    def feed(self, attempt: int, lines: Iterable[Mapping[str, Any]]) -> None:
        """Take in new lines of metrics.jsonl; those that come before `load` are among the kept ones."""
        if self._rows is None or attempt != self.attempt:
            return
        for line in lines:
            row = step_time(attempt, line)
            if row is not None and row.step > self._last_step:  # what was kept is not taken twice
                self._rows.append(row)
                self._last_step, self._is_new = row.step, True

    def is_due(self, attempt: int, state: RunState, now: datetime) -> bool:
        """Whether to look now: the attempt lives, and the last look was LOOK_EVERY_S ago."""
        is_time = self._looked_at is None or abs((now - self._looked_at).total_seconds()) >= LOOK_EVERY_S
        if not is_time or state not in _ALIVE or attempt != self.attempt:
            return False
        self._looked_at = now
        return True

    def living(self, beat: Heartbeat | None, earlier: int | None, on_disk: int | None) -> Iterator[Pattern]:
        """Yield what is news of the attempt while it lives.

        `earlier` is the newest checkpoint of attempts before this one, `on_disk` the newest one now.
        """
        attempt = self.attempt or 0
        found = [resumed_from_zero(beat, attempt, earlier, on_disk)]
        if self._is_new and self._rows is not None:
            self._is_new = False
            rows = list(self._rows)
            own = [row for row in rows if row.attempt == attempt]
            found += [throughput_regression(rows, attempt), stragglers(own)]
            if _SLOW in self._told and (slowdown(rows, attempt) or 1.0) < AGAIN_WELL:
                self._told.discard(_SLOW)
        return self._news(found)

    def died(
        self, ledger: Ledger, last_step: int | None, now: datetime, deaths: int, window_s: float
    ) -> Iterator[Pattern]:
        """Yield what the ends of this and earlier attempts have in common, if it is news."""
        return self._news([no_progress(ledger, last_step), crash_loop(ledger, now, deaths, window_s)])

    def _news(self, found: Iterable[Pattern | None]) -> Iterator[Pattern]:
        for pattern in found:
            if pattern is not None and pattern.failure not in self._told:
                self._told.add(pattern.failure)
                yield pattern


def work(spec: Mapping[str, Any] | None, environment: Mapping[str, Any] | None) -> str:
    """What decides how long a step takes: the configuration and the machine, as far as they are known."""
    told, machine = spec or {}, environment or {}
    keys = ["config", "config_toml", "overrides", "gpus"] + ["argv"] * (told.get("kind") == "command")
    parts = [{key: told.get(key) for key in keys}, machine.get("gpus"), machine.get("cpu")]
    return json.dumps(parts, sort_keys=True, default=str)


def step_time(attempt: int, line: Mapping[str, Any]) -> StepTime | None:
    """Return the step of a line of metrics.jsonl; None if it tells of none."""
    step, step_s = line.get("step"), finite_number(line.get("step_s"))
    if line.get("kind") != "train" or not isinstance(step, int) or isinstance(step, bool) or step_s is None:
        return None
    return StepTime(attempt, step, step_s, _rank_times(line.get("rank_s")))


def _rank_times(told: object) -> dict[int, float] | None:
    """Return the seconds of each rank's own work; `rank_s` is a list, by drafter rank."""
    if not isinstance(told, list):
        return None
    found = {rank: finite_number(value) for rank, value in enumerate(told)}
    known = {rank: value for rank, value in found.items() if value is not None}
    return known if len(known) == len(found) else None
