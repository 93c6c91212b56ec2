"""One run under watch: messages, a diagnosis, a decision, each told and recorded once."""

from __future__ import annotations

import random
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from orchestrator.classify import diagnose
from orchestrator.decide import decide
from orchestrator.errors import Exit
from orchestrator.launch import RELAUNCH_REASON
from orchestrator.observe import NOT_LOOKED, Cursor, RunTracker, Sighting
from orchestrator.types import (
    ActKind,
    Decision,
    Diagnosis,
    Evidence,
    FailureClass,
    Present,
    RunState,
    Snapshot,
)
from orchestrator.watch.events import Level, Sink, WatchEvent

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from orchestrator.playbook import Playbook
    from orchestrator.record import Record, RunRow
    from orchestrator.wire import Message

_LEVELS = {
    RunState.HEALTHY: Level.INFO,
    RunState.FINISHED: Level.GOOD,
    RunState.DEAD: Level.BAD,
    RunState.HUNG: Level.BAD,
    RunState.BLIND: Level.WARNING,
    RunState.UNSUPERVISED: Level.WARNING,
    RunState.CONTAINER_STOPPED: Level.WARNING,
    RunState.CONTAINER_FROZEN: Level.WARNING,
}
REREAD_BYTES = 64 << 20
MAX_LINE_BYTES = 1 << 16
SAVE_EVERY_S = 2.0

_ENDED = frozenset({RunState.DEAD, RunState.FINISHED, RunState.STOPPED})
_FINAL_EXIT = {RunState.FINISHED: Exit.OK, RunState.STOPPED: Exit.NOT_RUNNING}


def _evidence_json(evidence: Evidence) -> dict[str, Any]:
    return {key: getattr(value, "value", value) for key, value in asdict(evidence).items()}


class RunWatch:
    """What the watch knows and intends for one run."""

    def __init__(self, row: RunRow, playbook: Playbook, record: Record, sink: Sink, *, acting: bool) -> None:
        self.row = row
        self.playbook = playbook
        self.tracker = RunTracker(row.name)
        self.acting = acting
        self.decision: Decision | None = None
        self.ended: Exit | None = None
        self.busy = False  # an act is being carried out
        self.diagnosis: Diagnosis | None = None
        self.seen_gates: tuple[str, ...] = ()
        self._record = record
        self._sink = sink
        self._attempt: int | None = None
        self._log_partial = b""
        self._shown: dict[
            int, int
        ] = {}  # how much of each attempt's log was shown, by this watch or one before it
        self._saved_at: datetime | None = None
        self._blind_reason: str | None = None

    # -- taking in

    def cursor(self) -> Cursor:
        """Return from where the guest should send; a first look reads no more than the last REREAD_BYTES."""
        view = self.tracker.view
        if view is None:
            return Cursor(None, -REREAD_BYTES, 0)
        return Cursor(view.number, view.log_offset, view.metrics_offset)

    def apply(self, message: Message, now: datetime) -> None:
        """Take in one message of the run or its container."""
        sighting = self.tracker.apply(message, now)
        if sighting.attempt is not None:
            self._begin_attempt(sighting.attempt, now)
        self._tell(sighting, now)
        if sighting.metrics and sighting.of is not None:
            self._record.add_metrics(self.row.id, sighting.of, sighting.metrics, now)
        if message["type"] == "gpu" and self._attempt is not None and isinstance(self.tracker.gpus, Present):
            self._record.add_gpus(self.row.id, self._attempt, self.tracker.gpus.value, now)

    def lost(self, reason: str, now: datetime) -> None:
        """The stream broke; told here only before the first look, afterwards the diagnosis tells it."""
        self.tracker.lost(reason)
        if self.tracker.view is None and reason != self._blind_reason:
            self._blind_reason = reason
            self.emit(
                "blind",
                now,
                f"could not look: {reason}; this says nothing about the run",
                level=Level.WARNING,
            )

    def container(self, state: str | None) -> None:
        """The host said what the container is doing."""
        self.tracker.container = state

    def _begin_attempt(self, attempt: int, now: datetime) -> None:
        self._attempt, self.diagnosis, self.decision, self.ended = attempt, None, None, None
        self._record.save_attempt(self.row.id, attempt)
        self.emit("attempt", now, f"attempt {attempt}", detail={"spec": self._spec_summary()})

    def _spec_summary(self) -> Mapping[str, Any]:
        spec = self.tracker.spec or {}
        return {key: spec.get(key) for key in ("config", "overrides", "argv", "gpus", "trainer_sha256")}

    def _tell(self, sighting: Sighting, now: datetime) -> None:
        if sighting.log and sighting.of is not None:
            self._tell_log(sighting.of, sighting.log, sighting.log_offset, now)
        for row in sighting.metrics:
            self.emit("metrics", now, "", level=Level.DETAIL, detail=row)
        for evidence in sighting.predictions:
            self.emit("prediction", now, evidence.text, level=Level.WARNING, detail=_evidence_json(evidence))

    def _tell_log(self, attempt: int, data: bytes, offset: int, now: datetime) -> None:
        """Tell whole lines that no watch told before; a watch that was killed and restarted repeats none."""
        if attempt not in self._shown:
            self._shown[attempt] = self._record.cursor(self.row.id, attempt).log_offset
            self._log_partial = b""
        hidden = self._shown[attempt] - offset
        if hidden >= len(data):
            return
        lines = (self._log_partial + data[max(hidden, 0) :]).split(b"\n")
        self._log_partial = lines.pop()
        if len(self._log_partial) > MAX_LINE_BYTES:
            lines, self._log_partial = [*lines, self._log_partial], b""
        for line in lines:
            text = line.rsplit(b"\r", 1)[-1].decode("utf-8", "replace")
            self.emit("log", now, text, level=Level.DETAIL, attempt=attempt)
        self._shown[attempt] = offset + len(data) - len(self._log_partial)

    def save_cursor(self, now: datetime, *, force: bool = False) -> None:
        """Keep how far the log was told; at most every SAVE_EVERY_S."""
        view = self.tracker.view
        is_due = self._saved_at is None or (now - self._saved_at).total_seconds() >= SAVE_EVERY_S
        if view is not None and (is_due or force):
            self._saved_at = now
            shown = self._shown.get(view.number)
            self._record.save_cursor(self.row.id, view.number, shown, view.metrics_offset)

    # -- one turn

    def turn(self, now: datetime, latest: Snapshot | None = None) -> Decision | None:
        """Diagnose and decide; return the decision if it is an act that is due now."""
        snapshot = latest or self.tracker.snapshot(now)
        if (
            snapshot is None
            or self.busy
            or (not self.tracker.is_synced and self.tracker.liveness == NOT_LOOKED)
        ):
            return None
        limits = self.playbook.limits_for(self.tracker.median_step_s)
        diagnosis = diagnose(snapshot, limits)
        changed = self._note(diagnosis, snapshot, now)
        if changed or (self.decision is None and self._wants_decision(diagnosis)):
            self._decide(diagnosis, snapshot, now)
        decision = self.decision
        if (
            decision is None
            or not self.acting
            or decision.kind not in (ActKind.RELAUNCH, ActKind.RELAUNCH_WITH)
        ):
            return None
        return decision if decision.not_before is None or decision.not_before <= now else None

    @staticmethod
    def _wants_decision(diagnosis: Diagnosis) -> bool:
        return diagnosis.state in (RunState.DEAD, RunState.HUNG, RunState.CONTAINER_STOPPED)

    def _note(self, diagnosis: Diagnosis, snapshot: Snapshot, now: datetime) -> bool:
        before = self.diagnosis
        self.diagnosis = diagnosis
        same = before is not None and (before.state, before.failure, before.fingerprint) == (
            diagnosis.state,
            diagnosis.failure,
            diagnosis.fingerprint,
        )
        if same:
            return False
        self._record.transition(
            self.row.id,
            snapshot.attempt,
            before.state if before else None,
            diagnosis.state,
            diagnosis.summary,
            now,
        )
        if diagnosis.state in _ENDED or diagnosis.state is RunState.HUNG:
            self._save_end(diagnosis, snapshot, now)
        if diagnosis.state not in (RunState.HEALTHY, RunState.NEW, RunState.BLIND):
            self._record.diagnosis(self.row.id, snapshot.attempt, diagnosis, now)
        self._tell_diagnosis(diagnosis, now)
        self.decision = None
        # A person who relaunches stops the run for a moment only; the next attempt is about to come.
        is_passing = diagnosis.state is RunState.STOPPED and snapshot.stop_reason == RELAUNCH_REASON
        self.ended = None if is_passing else _FINAL_EXIT.get(diagnosis.state)
        return True

    def _save_end(self, diagnosis: Diagnosis, snapshot: Snapshot, now: datetime) -> None:
        view = self.tracker.view
        exit_record = snapshot.exit.value if isinstance(snapshot.exit, Present) else None
        heartbeat = snapshot.heartbeat.value if isinstance(snapshot.heartbeat, Present) else None
        words = snapshot.last_words.value if isinstance(snapshot.last_words, Present) else None
        known = (heartbeat.step if heartbeat else None, words.step if words else None, snapshot.log.last_step)
        steps = [step for step in known if step is not None]
        self._record.save_attempt(
            self.row.id,
            snapshot.attempt,
            ended_at=now if diagnosis.state in _ENDED else None,
            failure=diagnosis.failure,
            fingerprint=diagnosis.fingerprint,
            first_step=view.first_step if view else None,
            last_step=max(steps, default=None),
            checkpoint_step=self.tracker.checkpoint_step,
            exit_code=exit_record.code if exit_record else None,
            exit_signal=exit_record.signal if exit_record else None,
        )

    def _tell_diagnosis(self, diagnosis: Diagnosis, now: datetime) -> None:
        if diagnosis.state is RunState.NEW:
            return
        level = _LEVELS.get(diagnosis.state, Level.INFO)
        kind = "blind" if diagnosis.state is RunState.BLIND else "diagnosis"
        if diagnosis.state in (RunState.HEALTHY, RunState.STOPPED):
            kind = "state"
        detail = {
            "state": diagnosis.state.value,
            "failure": diagnosis.failure.value if diagnosis.failure else None,
            "confidence": diagnosis.confidence,
            "fingerprint": diagnosis.fingerprint,
            "evidence": [_evidence_json(item) for item in diagnosis.evidence],
            "cascades": [_evidence_json(item) for item in diagnosis.cascades],
        }
        title = diagnosis.state.value
        if diagnosis.failure not in (None, FailureClass.HEALTHY, FailureClass.COMPLETED):
            title = f"{title}: {diagnosis.failure.value}" if diagnosis.failure else title
        self.emit(kind, now, f"{title} - {diagnosis.summary}", level=level, detail=detail)

    def _decide(self, diagnosis: Diagnosis, snapshot: Snapshot, now: datetime) -> None:
        history = self._record.history(self.row.id)
        decision = decide(diagnosis, self.playbook, history, snapshot, now, random.uniform(-1.0, 1.0))
        if decision.kind is ActKind.NONE:
            return
        self.decision = decision
        wait_s = (decision.not_before - now).total_seconds() if decision.not_before else 0.0
        text = f"{decision.kind.value}: {decision.reason}"
        if decision.kind in (ActKind.RELAUNCH, ActKind.RELAUNCH_WITH):
            text += f" (in {max(wait_s, 0.0):.1f} s)" if self.acting else " (observe-only: nothing is done)"
        detail = {
            "kind": decision.kind.value,
            "rule": decision.rule,
            "attempts_left": decision.attempts_left,
            "changes": dict(decision.changes),
            "in_s": round(max(wait_s, 0.0), 3),
        }
        level = Level.BAD if decision.kind in (ActKind.CALL, ActKind.GIVE_UP) else Level.INFO
        self.emit("decision", now, text, level=level, detail=detail)
        self._record_decision(decision, diagnosis, snapshot, now)

    def _record_decision(
        self, decision: Decision, diagnosis: Diagnosis, snapshot: Snapshot, now: datetime
    ) -> None:
        if decision.kind in (ActKind.CALL, ActKind.GIVE_UP):
            intent = {"diagnosis": diagnosis.summary}
            action = self._record.intend(
                self.row.id, snapshot.attempt, decision.kind.value, decision.reason, intent, now
            )
            self._record.outcome(action, "told", now)
            self.ended = Exit.GAVE_UP if decision.kind is ActKind.GIVE_UP else Exit.NEEDS_PERSON
        elif not self.acting and diagnosis.state is RunState.DEAD:
            self.ended = Exit.FAILED
        elif not self.acting and diagnosis.state is RunState.HUNG:
            self.ended = Exit.HUNG

    # -- telling

    def emit(
        self,
        kind: str,
        now: datetime,
        text: str,
        *,
        level: Level = Level.INFO,
        detail: Mapping[str, Any] | None = None,
        attempt: int | None = None,
    ) -> None:
        """Tell one thing about this run."""
        self._sink.emit(
            WatchEvent(
                kind=kind,
                at=now,
                run=self.row.name,
                target=self.row.target_key,
                attempt=self._attempt if attempt is None else attempt,
                text=text,
                level=level,
                detail=detail or {},
            )
        )
