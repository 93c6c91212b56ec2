"""What is noticed of a run that goes on: its log fills the disk, its tmux session is gone. Never acted on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.classify.growth import Forecast, LogGrowth, Sample
from orchestrator.types.failure import Diagnosis, Evidence, FailureClass, Role, RunState
from orchestrator.types.seen import Liveness, Present, Reading
from orchestrator.watch.events import Level
from orchestrator.watch.telling import evidence_json

if TYPE_CHECKING:
    from datetime import datetime

    from orchestrator.observe import RunTracker
    from orchestrator.record import Record, RunRow
    from orchestrator.watch.telling import Teller
    from orchestrator.wire import Message

# A relaunch takes the session down and makes another; tmux may be slow to say so.
SESSION_GONE_S = 10.0
_LIVING = frozenset({RunState.HEALTHY, RunState.UNSUPERVISED, RunState.HUNG})


class Notices:
    """One run's."""

    def __init__(self, row: RunRow, record: Record, teller: Teller) -> None:
        self._row = row
        self._record = record
        self._teller = teller
        self._growth = LogGrowth()
        self._gone_since: datetime | None = None
        self._told: set[tuple[int, FailureClass | None]] = set()

    @property
    def forecast(self) -> Forecast | None:
        """When the disk is full, while a person was told so."""
        return self._growth.forecast() if self._growth.is_told else None

    def take(self, message: Message, tracker: RunTracker, state: RunState | None, now: datetime) -> None:
        """Look at what a message changed; `state` is the run's, as it was diagnosed last.

        Raises:
            LookupError, TypeError, ValueError: It is not what the wire's contract says.
            RecordError: The record cannot be written.
        """
        attempt = self._teller.attempt
        if message["type"] == "hello":
            self._growth.forget()
        if attempt is None or state not in _LIVING:
            self._gone_since = None
            return
        if message["type"] == "disk":
            self._note_disk(message, attempt, state, now)
        self._note_session(tracker.liveness, attempt, state, now)

    def _note_disk(self, message: Message, attempt: int, state: RunState, now: datetime) -> None:
        size = (message.get("logs") or {}).get(self._row.name)
        if size is None:
            return
        self._growth.add(Sample(now.timestamp(), int(size), int(message["free_bytes"])))
        found = self._growth.news()
        if found is not None:
            text = f"{found.summary}; nothing of it is cut by itself"
            proof = Evidence(source="log", text=found.summary, role=Role.PREDICTION, signature="log_growth")
            self._tell("disk", attempt, _about(state, FailureClass.DISK_FULL, text, proof), now)

    def _note_session(
        self, liveness: Reading[Liveness], attempt: int, state: RunState, now: datetime
    ) -> None:
        """The session is only for looking: that it is gone is told once an attempt, when it stays gone."""
        seen = liveness.value if isinstance(liveness, Present) else None
        if seen is None or seen.session or not seen.supervisor or not seen.pids:
            self._gone_since = None
            return
        self._gone_since = self._gone_since or now
        if (now - self._gone_since).total_seconds() < SESSION_GONE_S:
            return
        text = "its tmux session is gone; the trainer lives and is watched as before, `attach` shows nothing"
        proof = Evidence(source="tmux", text="no session of the run, while its processes live")
        self._tell("session", attempt, _about(state, FailureClass.SESSION_LOST, text, proof), now)

    def _tell(self, kind: str, attempt: int, found: Diagnosis, now: datetime) -> None:
        """Tell it unless it was told of this attempt, by this watch or by one before it."""
        key = (attempt, found.failure)
        if key in self._told or found.failure is None:
            return
        self._told.add(key)
        if key in {(each.attempt, each.failure) for each in self._record.diagnoses(self._row.id)}:
            return
        detail = {
            "failure": found.failure.value,
            "evidence": [evidence_json(each) for each in found.evidence],
        }
        text = f"{found.failure.value} - {found.summary}"
        self._teller.emit(kind, now, text, level=Level.WARNING, detail=detail)
        self._record.diagnosis(self._row.id, attempt, found, now)


def _about(state: RunState, failure: FailureClass, text: str, proof: Evidence) -> Diagnosis:
    return Diagnosis(state=state, failure=failure, summary=text, evidence=(proof,), confidence=0.7)
