"""Samples and cursors wait here for a moment, so that hundreds of runs cost two commits a second.

Nothing is lost with it: a watch that is killed reads metrics.jsonl again from its start, and tells again the
lines of the log that came after the last commit. What was seen, concluded and done is never held back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.record import Batch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from typing import Any

    from orchestrator.record import Record
    from orchestrator.types.seen import Gpu

EVERY_S = 0.5
GPUS_EVERY_S = 10.0  # the record keeps no more than that


class SampleBuffer:
    """One watch's. Times are seconds of a clock that never goes back."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._batch = Batch()
        self._written_at: float | None = None
        self._gpus_at: dict[int, datetime] = {}

    def metrics(self, run_id: int, attempt: int, rows: Sequence[Mapping[str, Any]], now: datetime) -> None:
        """Lines of metrics.jsonl came."""
        self._batch.add_metrics((run_id, attempt), rows, now)

    def gpus(self, run_id: int, attempt: int, gpus: tuple[Gpu, ...], now: datetime) -> None:
        """The GPUs were read; one reading in a while is kept."""
        before = self._gpus_at.get(run_id)
        if before is None or abs((now - before).total_seconds()) >= GPUS_EVERY_S:
            self._gpus_at[run_id] = now
            self._batch.gpus[(run_id, attempt)] = (gpus, now)

    def cursor(self, run_id: int, attempt: int, log_offset: int | None, metrics_offset: int | None) -> None:
        """The attempt's files were processed so far."""
        self._batch.move_cursor((run_id, attempt), log_offset or 0, metrics_offset or 0)

    def log_anew(self, run_id: int, attempt: int) -> None:
        """The attempt's log was emptied, and is processed from its beginning."""
        self._batch.begin_log_anew((run_id, attempt))

    def flush(self, now: float, *, force: bool = False) -> None:
        """Write what waits, if it is time.

        Raises:
            RecordError: The record cannot be written.
        """
        is_due = self._written_at is None or now - self._written_at >= EVERY_S
        if not self._batch or not (is_due or force):
            return
        batch, self._batch, self._written_at = self._batch, Batch(), now
        self._record.save_batch(batch)
