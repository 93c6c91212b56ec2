"""Patterns over the steps and attempts of a recording, by the very functions and at the pace of a watch.

Only what the recording proves is told. It has the last heartbeat alone, and no free space of the disk.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.classify.course import Course, step_time, work
from orchestrator.ledger import best, open_ledger
from orchestrator.observe import parse
from orchestrator.types.failure import RunState
from orchestrator.types.seen import Heartbeat, Phase, Present

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from orchestrator.classify.history import Pattern, StepTime
    from orchestrator.observe import RunTracker, Sighting
    from orchestrator.playbook import Playbook
    from orchestrator.replay.recording import RecordedAttempt, Recording
    from orchestrator.types.decision import History, PastAttempt
    from orchestrator.types.failure import Diagnosis
    from orchestrator.types.snapshot import Snapshot

# Before these the trainer has not yet said what it resumed from.
_RESUMED = frozenset({Phase.TRAIN, Phase.EVAL, Phase.CHECKPOINT, Phase.EXPORT, Phase.DONE})


class Patterns:
    """Those of one recording."""

    def __init__(self, recording: Recording, playbook: Playbook) -> None:
        self._attempts = {attempt.number: attempt for attempt in recording.attempts}
        self._playbook = playbook
        self._course = Course()
        self._kept: dict[int, dict[int, StepTime]] = {}  # by attempt and step; as a record's without `rank_s`
        self._last: Heartbeat | None = None
        self._furthest: int | None = None  # step that the whole attempt is known to have reached

    def begin(self, attempt: int) -> None:
        """A new attempt: what was told of the old one may be told of it, too.

        Raises:
            ConfigError: A file of the recording is not what it should be.
        """
        self._course.begin(attempt)
        recorded = self._attempts[attempt]
        found = parse.reading(recorded.read("heartbeat.json"), parse.heartbeat, "heartbeat.json")
        self._last = found.value if isinstance(found, Present) else None
        steps = [row["step"] for row in recorded.lines("metrics.jsonl") if isinstance(row.get("step"), int)]
        self._furthest = max([*steps, *([self._last.step] if self._last else [])], default=None)

    def feed(self, sighting: Sighting) -> None:
        """Take in what came of metrics.jsonl."""
        if sighting.of is None or not sighting.metrics:
            return
        kept = self._kept.setdefault(sighting.of, {})
        for line in sighting.metrics:
            row = step_time(sighting.of, line)
            if row is not None:
                kept.setdefault(row.step, replace(row, rank_s=None))
        self._course.feed(sighting.of, sighting.metrics)

    def look(
        self, tracker: RunTracker, snapshot: Snapshot, diagnosis: Diagnosis, past: Sequence[PastAttempt]
    ) -> Iterator[Pattern]:
        """Yield what is news of a living attempt, now and then."""
        number, view, state = snapshot.attempt, tracker.view, diagnosis.state
        if state is RunState.NEW and self._kept.get(number):
            state = RunState.HEALTHY  # the one heartbeat is the last; a step shows that it trains before that
        if not self._course.is_due(number, state, snapshot.now):
            return
        if not self._course.is_loaded and view is not None and view.metrics_offset > 0:
            self._course.load(self._alike(number))
        earlier = best(each for each in past if each.attempt < number)
        on_disk = tracker.checkpoint_step
        if self._furthest is not None and self._furthest >= earlier:
            on_disk = None  # the one that is there at the end may be the attempt's own
        yield from self._course.living(self._beat(snapshot), earlier, on_disk)

    def died(self, history: History, snapshot: Snapshot, now: datetime) -> Iterator[Pattern]:
        """Yield what the ends of this and earlier attempts have in common."""
        ledger, book = open_ledger(history, snapshot), self._playbook
        return self._course.died(ledger, snapshot.last_step, now, book.loop_deaths, book.loop_window_s)

    def _beat(self, snapshot: Snapshot) -> Heartbeat | None:
        """Return the heartbeat, or as much of it as a step that was told before it proves."""
        if isinstance(snapshot.heartbeat, Present):
            return snapshot.heartbeat.value
        steps = self._kept.get(snapshot.attempt)
        if self._last is None or self._last.phase not in _RESUMED or not steps:
            return None
        return replace(self._last, phase=Phase.TRAIN, step=max(steps))

    def _alike(self, number: int) -> Iterable[StepTime]:
        own = _work(self._attempts[number])
        for each in sorted(n for n in self._kept if n <= number):
            if each == number or _work(self._attempts[each]) == own:
                yield from (row for _, row in sorted(self._kept[each].items()))


def _work(attempt: RecordedAttempt) -> str:
    return work(attempt.read("run.json"), attempt.read("environment.json"))
