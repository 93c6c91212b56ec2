"""The record as the rest of the program sees it. Any thread may call; what has returned is on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.places import record_path
from orchestrator.record import convert, runs, samples, story, timeline
from orchestrator.record.batch import Batch, BatchWriter
from orchestrator.record.database import BUSY_TIMEOUT_S, Database
from orchestrator.record.models import CursorEntry
from orchestrator.record.rows import (
    ActionRow,
    AttemptRow,
    Cursor,
    DiagnosisRow,
    EventRow,
    GpuRow,
    MetricRow,
    RunRow,
)
from orchestrator.types.decision import History

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractContextManager
    from datetime import datetime
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self, Unpack

    from orchestrator.record.runs import AttemptFields
    from orchestrator.types.failure import Diagnosis, RunState
    from orchestrator.types.seen import Gpu


class Record:
    """One SQLite file. Every method raises RecordError if the file cannot be read or written."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._batches = BatchWriter()

    @classmethod
    def open(cls, path: Path | None = None, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Record:
        """Open `path`, else the user's own record; create or migrate it.

        Raises:
            RecordError: It cannot be opened, is not a record, or is of a newer program.
        """
        return cls(Database(path or record_path(), busy_timeout_s=busy_timeout_s))

    def close(self) -> None:
        """Close the file. Closing twice does nothing."""
        self._database.close()

    def reopen(self) -> bool:
        """Go on with the file that is at the path now; returns whether it replaced the one that was open.

        Raises:
            RecordGone: Nothing is there.
            RecordError: What is there is no record.
        """
        is_other = self._database.reopen()
        if is_other:
            self._batches = BatchWriter()
        return is_other

    def together(self) -> AbstractContextManager[None]:
        """Write what this thread writes inside in one transaction; reads inside do not see it yet."""
        return self._database.together()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def path(self) -> Path:
        """Where the record is."""
        return self._database.path

    def save_run(
        self,
        name: str,
        target: Mapping[str, Any],
        target_key: str,
        spec: Mapping[str, Any],
        now: datetime,
        playbook: str | None = None,
    ) -> RunRow:
        """Insert or update the live run of this name at this target; without `playbook` it keeps its own.

        A mapping under the key "env" in `target` or `spec` is reduced to its names.
        """
        return self._database.write(
            lambda s: convert.to_run(runs.save(s, name, target, target_key, spec, now, playbook))
        )

    def run(self, name: str, target_key: str | None = None) -> RunRow:
        """Return the live run of this name.

        Raises:
            NotFound: There is none; tells which there are.
            ConfigError: Several targets have one.
        """
        return self._database.read(lambda s: convert.to_run(runs.find(s, name, target_key, self.path)))

    def runs(self, *, include_removed: bool = False) -> list[RunRow]:
        """Return the runs, oldest first."""
        return self._database.read(
            lambda s: [convert.to_run(run) for run in runs.all_runs(s, include_removed=include_removed)]
        )

    def remove_run(self, run_id: int, now: datetime) -> None:
        """Free the run's name and drop its samples; its attempts, diagnoses and actions stay."""
        self._database.write(lambda s: runs.remove(s, run_id, now))

    def save_attempt(self, run_id: int, n: int, **fields: Unpack[AttemptFields]) -> AttemptRow:
        """Insert or update attempt `n`; a field that is not given keeps its value."""
        return self._database.write(lambda s: convert.to_attempt(runs.save_attempt(s, run_id, n, fields)))

    def attempts(self, run_id: int) -> list[AttemptRow]:
        """Return the run's attempts, oldest first."""
        return self._database.read(lambda s: [convert.to_attempt(a) for a in runs.attempts(s, run_id)])

    def history(self, run_id: int) -> History:
        """Return the ended attempts, oldest first."""
        return self._database.read(
            lambda s: History(
                attempts=tuple(convert.to_past(a) for a in runs.attempts(s, run_id) if a.ended_at is not None)
            )
        )

    def transition(
        self,
        run_id: int,
        attempt: int,
        from_state: RunState | None,
        to_state: RunState,
        summary: str,
        now: datetime,
    ) -> bool:
        """Add a change of state and set the run's; False if the attempt is already recorded in that state."""
        return self._database.write(
            lambda s: story.add_transition(s, run_id, attempt, (from_state, to_state), summary, now)
        )

    def diagnosis(self, run_id: int, attempt: int, diagnosis: Diagnosis, now: datetime) -> int:
        """Add the diagnosis, set the run's state, return the id: the newest one's if it says the same."""
        return self._database.write(lambda s: story.add_diagnosis(s, run_id, attempt, diagnosis, now))

    def latest_diagnosis(self, run_id: int, attempt: int | None = None) -> DiagnosisRow | None:
        """Return the newest diagnosis of the attempt, or of the newest attempt that has one."""
        return self._database.read(lambda s: story.latest(s, run_id, attempt))

    def diagnoses(self, run_id: int) -> list[DiagnosisRow]:
        """Return the run's diagnoses, oldest first."""
        return self._database.read(lambda s: story.diagnoses(s, run_id))

    def intend(
        self, run_id: int, attempt: int, kind: str, reason: str, intent: Mapping[str, Any], now: datetime
    ) -> int:
        """Write down what is about to be done, before it is done; return the action's id."""
        return self._database.write(lambda s: story.intend(s, run_id, attempt, kind, reason, intent, now))

    def outcome(self, action_id: int, outcome: str, now: datetime, error: str | None = None) -> bool:
        """Write down how the act went; False if that was done before: the first word stays."""
        return self._database.write(lambda s: story.close(s, action_id, outcome, now, error))

    def open_intents(self, run_id: int) -> list[ActionRow]:
        """Return the intents without an outcome, oldest first: their watcher was killed, or is at it."""
        return self._database.read(lambda s: [convert.to_action(a) for a in story.open_intents(s, run_id)])

    def awaits_relaunch(self, run_id: int) -> bool:
        """Whether a relaunch of the run was begun, by its stop, and is not known to be finished."""
        return self._database.read(lambda s: story.awaits_relaunch(s, run_id))

    def newest_actions(self) -> dict[int, int]:
        """Return the id of each run's newest action: it grows with every start and stop."""
        return self._database.read(story.newest_actions)

    def events(
        self, run_id: int | None = None, since: datetime | None = None, limit: int = 1_000
    ) -> list[EventRow]:
        """Return the newest `limit` events from `since` on (inclusive), oldest first; None: of all runs."""
        return self._database.read(lambda s: timeline.events(s, run_id, since, limit))

    def add_metrics(self, run_id: int, attempt: int, rows: Iterable[Mapping[str, Any]], now: datetime) -> int:
        """Keep lines of metrics.jsonl, thinned; return how many are new. What is no such line is skipped."""
        lines = list(rows)
        return self._database.write(lambda s: samples.add_metrics(s, run_id, attempt, lines, now))

    def save_batch(self, batch: Batch) -> None:
        """Write the samples and cursors of many runs at once, as `add_metrics` and the others do for one."""
        self._batches.learn(self._database.write(lambda s: self._batches.write(s, batch)))

    def metrics(self, run_id: int, attempt: int | None = None) -> list[MetricRow]:
        """Return the kept metrics, by attempt and step; of one attempt if it is given."""
        return self._database.read(lambda s: samples.metrics(s, run_id, attempt))

    def add_gpus(self, run_id: int, attempt: int, gpus: Iterable[Gpu], now: datetime) -> int:
        """Keep GPU readings, one a GPU every 10 s at most; return how many."""
        readings = list(gpus)
        return self._database.write(lambda s: samples.add_gpus(s, run_id, attempt, readings, now))

    def gpus(self, run_id: int, since: datetime | None = None) -> list[GpuRow]:
        """Return the kept GPU readings from `since` on, by time and GPU."""
        return self._database.read(lambda s: [convert.to_gpu(g) for g in samples.gpus(s, run_id, since)])

    def cursor(self, run_id: int, attempt: int) -> Cursor:
        """Return how far the attempt's files were processed; the start of both if nothing was."""
        entry = self._database.read(lambda s: s.get(CursorEntry, (run_id, attempt)))
        if entry is None:
            return Cursor()
        return Cursor(log_offset=entry.log_offset, metrics_offset=entry.metrics_offset)
