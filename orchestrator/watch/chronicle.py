"""The course of a run, told and kept on record as it comes; nothing is concluded from it here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.launch import origin
from orchestrator.types.seen import Present
from orchestrator.watch.ending import save_origin
from orchestrator.watch.events import Level
from orchestrator.watch.telling import evidence_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from orchestrator.mirror import Keeper
    from orchestrator.observe import RunTracker, Sighting
    from orchestrator.record import Record, RunRow
    from orchestrator.watch.samplebuffer import SampleBuffer
    from orchestrator.watch.telling import Teller
    from orchestrator.wire import Message

_TOLD_OF_SPEC = ("config", "overrides", "argv", "gpus", "trainer_sha256")


class Chronicle:
    """One run's."""

    def __init__(
        self, row: RunRow, record: Record, teller: Teller, samples: SampleBuffer, mirror: Keeper | None = None
    ) -> None:
        self._row = row
        self._record = record
        self._teller = teller
        self._samples = samples
        self._mirror = mirror
        self._has_origin = False  # who began the newest attempt is on record

    def begin(self, attempt: int, spec: Mapping[str, Any], now: datetime) -> None:
        """A new attempt was seen; `spec` is the last launch's, which may be of another one.

        Raises:
            RecordError: The record cannot be written.
        """
        self._teller.begin(attempt)
        self._has_origin = False
        self._record.save_attempt(self._row.id, attempt)
        told = _TOLD_OF_SPEC if spec.get("attempt") == attempt else ()
        begun = origin(spec, attempt)
        detail = {
            "spec": {key: spec.get(key) for key in told},
            "by": begun.get("by"),
            "actor": begun.get("actor"),
        }
        words = ", ".join([f"attempt {attempt}", *([begun["text"]] if begun else [])])
        self._teller.emit("attempt", now, words, detail=detail)

    def take(self, message: Message, sighting: Sighting, tracker: RunTracker, now: datetime) -> None:
        """Tell and keep what a message brought.

        Raises:
            LookupError, TypeError, ValueError: It is not what the wire's contract says.
            RecordError: The record cannot be written.
        """
        kind = message["type"]
        if kind == "run":
            self._note_origin(tracker.spec or {})
        self._tell(sighting, tracker, now)
        if kind == "exit":
            self._end_log(int(message["attempt"]), now)
            if self._mirror is not None:
                self._mirror.end(self._row.id, int(message["attempt"]), now)
        if sighting.metrics and sighting.of is not None:
            self._samples.metrics(self._row.id, sighting.of, sighting.metrics, now)
            self._samples.cursor(self._row.id, sighting.of, None, int(message.get("next_offset") or 0))
        if sighting.environment and tracker.view is not None:
            environment = tracker.view.environment
            self._record.save_attempt(self._row.id, tracker.view.number, environment=environment)
        attempt = self._teller.attempt
        if kind == "gpu" and attempt is not None and isinstance(tracker.gpus, Present):
            self._samples.gpus(self._row.id, attempt, tracker.gpus.value, now)

    def _note_origin(self, spec: Mapping[str, Any]) -> None:
        attempt = self._teller.attempt
        if attempt is not None and not self._has_origin and spec.get("attempt") == attempt:
            with self._record.together():
                save_origin(self._record, self._row.id, attempt, spec)
                self._record.save_attempt(self._row.id, attempt, spec=spec)
            self._has_origin = True

    def _tell(self, sighting: Sighting, tracker: RunTracker, now: datetime) -> None:
        if sighting.is_log_anew and sighting.of is not None:
            self._teller.log_anew(sighting.of, now)
            self._samples.log_anew(self._row.id, sighting.of)
            if self._mirror is not None:
                self._mirror.begin_anew(self._row.id, sighting.of, now)
        if sighting.log and sighting.of is not None:
            if self._teller.shown(sighting.of) is None:
                self._end_log(sighting.of - 1, now)  # of which everything came before this
            self._teller.log(sighting.of, sighting.log, sighting.log_offset, now)
            self._keep_cursor(sighting.of)
            if self._mirror is not None:
                self._mirror.take(self._row.id, sighting.of, sighting.log, sighting.log_offset, now)
        view = tracker.view
        if sighting.heartbeat and view is not None and isinstance(view.heartbeat, Present):
            self._teller.guard(view.number, view.heartbeat.value, now)
        for row in sighting.metrics:
            self._teller.emit("metrics", now, "", level=Level.DETAIL, detail=row)
        for evidence in sighting.predictions:
            detail = evidence_json(evidence)
            self._teller.emit("prediction", now, evidence.text, level=Level.WARNING, detail=detail)

    def _end_log(self, attempt: int, now: datetime) -> None:
        self._teller.end_log(attempt, now)
        self._keep_cursor(attempt)

    def _keep_cursor(self, attempt: int) -> None:
        """Keep how far the attempt's log was told."""
        shown = self._teller.shown(attempt)
        if shown is not None:
            self._samples.cursor(self._row.id, attempt, shown, None)
