"""One run under watch: messages in, a diagnosis and a decision out, each recorded and told once."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.classify import diagnose
from orchestrator.decide import decide
from orchestrator.errors import Exit
from orchestrator.ladder import facts
from orchestrator.launch import RELAUNCH_REASON, origin
from orchestrator.observe import NOT_LOOKED, Cursor, RunTracker, Sighting
from orchestrator.observe.parse import instant
from orchestrator.types.decision import ActKind, Decision
from orchestrator.types.failure import Diagnosis, RunState
from orchestrator.types.seen import Present
from orchestrator.watch.company import Company
from orchestrator.watch.ending import save_call, save_end, save_origin
from orchestrator.watch.events import Level, Sink
from orchestrator.watch.hosttelling import HostTeller
from orchestrator.watch.kept import Kept, earlier
from orchestrator.watch.kernelwait import KernelWait
from orchestrator.watch.noticing import Notices
from orchestrator.watch.pace import Pace
from orchestrator.watch.patience import Patience
from orchestrator.watch.patterns import Patterns
from orchestrator.watch.stacktaking import HangLook
from orchestrator.watch.telling import Teller, evidence_json

if TYPE_CHECKING:
    from datetime import datetime

    from orchestrator.classify.kernel import KernelEvent
    from orchestrator.limits import Limits
    from orchestrator.playbook import Playbook
    from orchestrator.record import Record, RunRow
    from orchestrator.types.snapshot import Snapshot
    from orchestrator.watch.samplebuffer import SampleBuffer
    from orchestrator.wire import Message

REREAD_BYTES = 64 << 20

_ENDED = frozenset({RunState.DEAD, RunState.FINISHED, RunState.STOPPED})
_LIVING = frozenset({RunState.NEW, RunState.HEALTHY, RunState.UNSUPERVISED})
_UNSEEN = frozenset({RunState.BLIND, RunState.CONTAINER_STOPPED, RunState.CONTAINER_FROZEN})
_UNTOLD = frozenset({RunState.NEW, RunState.HEALTHY, RunState.BLIND})
_FINAL_EXIT = {RunState.FINISHED: Exit.OK, RunState.STOPPED: Exit.NOT_RUNNING}


class RunWatch:
    """What the watch knows and intends for one run."""

    def __init__(
        self,
        row: RunRow,
        playbook: Playbook,
        record: Record,
        sink: Sink,
        samples: SampleBuffer,
        *,
        acting: bool,
    ) -> None:
        self.row = row
        self.playbook = playbook
        self.tracker = RunTracker(row.name, row.target.get("ct"))
        self.tracker.custom = playbook.custom
        self.teller = Teller(row, record, sink)
        self.notices = Notices(row, record, self.teller)
        self.host_teller = HostTeller(self.teller)
        self.kernel_wait = KernelWait()
        self.patterns = Patterns(row, record, self.teller, playbook)
        self.company = Company(self.teller)
        self.patience = Patience()
        self.acting = acting
        self.decision: Decision | None = None
        self.ended: Exit | None = None
        self.busy = False  # an act is being carried out
        self.hang_look = HangLook()
        self.holders = ""  # who keeps the GPUs from a relaunch, as the host tells it
        self.diagnosis: Diagnosis | None = None
        self._record = record
        self._samples = samples
        self._kept: Kept | None = None
        self._is_deaf = False
        self._pace = Pace()
        self._has_origin = False  # who began the newest attempt is on record

    # -- taking in

    def cursor(self) -> Cursor:
        """Return from where the guest should send; a first look reads no more than the last REREAD_BYTES."""
        view = self.tracker.view
        if view is None:
            return Cursor(None, -REREAD_BYTES, 0)
        return Cursor(view.number, view.log_offset, view.metrics_offset)

    def apply(self, message: Message, now: datetime) -> None:
        """Take in one message of the run or its container.

        Raises:
            LookupError, TypeError, ValueError: It is not what the wire's contract says; see `deafen`.
            RecordError: The record cannot be written.
        """
        self._is_deaf = self._is_deaf and message["type"] != "hello"
        if self._is_deaf:
            return
        self._pace.touch(message["type"])
        self.host_teller.begin(now)
        sighting = self.tracker.apply(message, now)
        if message["type"] == "watchers":
            self.company.take(self.tracker.onlookers, now, acting=self.acting)
        if sighting.attempt is not None:
            self._begin_attempt(sighting.attempt, now)
        if message["type"] == "run":
            self._note_origin()
        self._tell(sighting, now)
        if message["type"] == "exit":
            self.teller.end_log(int(message["attempt"]), now)
            self._keep_cursor(int(message["attempt"]))
        if sighting.metrics and sighting.of is not None:
            self.patterns.feed(sighting.of, sighting.metrics)
            self._samples.metrics(self.row.id, sighting.of, sighting.metrics, now)
            self._samples.cursor(self.row.id, sighting.of, None, int(message.get("next_offset") or 0))
        if sighting.environment and self.tracker.view is not None:
            environment = self.tracker.view.environment
            self._record.save_attempt(self.row.id, self.tracker.view.number, environment=environment)
        attempt = self.teller.attempt
        if message["type"] == "gpu" and attempt is not None and isinstance(self.tracker.gpus, Present):
            self._samples.gpus(self.row.id, attempt, self.tracker.gpus.value, now)
        self.notices.take(message, self.tracker, self.diagnosis.state if self.diagnosis else None, now)

    def deafen(self, reason: str, now: datetime) -> None:
        """What came makes no sense, so what follows it proves nothing: blind until the stream begins anew."""
        self._is_deaf = True
        self.lost("guest_error", reason, now)

    def lost(self, code: str, reason: str, now: datetime) -> None:
        """The stream broke."""
        self._pace.touch()
        self.tracker.lost(reason)
        self.teller.lost(code, reason, now, was_seen=self.tracker.view is not None)

    def container(self, state: str | None) -> None:
        """The host said what the container is doing, `frozen:backup` where a lock tells why."""
        self._pace.touch()
        is_frozen = state is not None and state.startswith("frozen")
        self.tracker.container = "frozen" if is_frozen else state
        self.tracker.container_lock = state.partition(":")[2] or None if state is not None else None

    def host(self, event: KernelEvent, now: datetime) -> None:
        """The host's kernel said something; it is told if it is about this run, and new."""
        self._pace.touch()
        kept = self.tracker.host.add(event, self.tracker.own_gpus)
        if kept is not None:
            self.host_teller.tell(kept, now, self.tracker.clock_skew_s)

    @property
    def kernel_since(self) -> datetime | None:
        """When the attempt began by the container's clock; None while that is not known."""
        info = self.tracker.view.info if self.tracker.view is not None else None
        started = (info or {}).get("started_at")
        return instant(started) if isinstance(started, str) else None

    def _begin_attempt(self, attempt: int, now: datetime) -> None:
        if self.teller.attempt is not None:
            self.teller.end_log(self.teller.attempt, now)
            self._keep_cursor(self.teller.attempt)
        self.teller.begin(attempt)
        self.patterns.begin(attempt)
        self.diagnosis, self.decision, self.ended, self._kept = None, None, None, None
        self.patience.reset()
        self.holders = ""
        self._has_origin = False
        self._record.save_attempt(self.row.id, attempt)
        spec = self.tracker.spec or {}
        told = (
            ("config", "overrides", "argv", "gpus", "trainer_sha256")
            if spec.get("attempt") == attempt
            else ()
        )
        begun = origin(spec, attempt)
        detail = {
            "spec": {key: spec.get(key) for key in told},
            "by": begun.get("by"),
            "actor": begun.get("actor"),
        }
        words = ", ".join([f"attempt {attempt}", *([begun["text"]] if begun else [])])
        self.teller.emit("attempt", now, words, detail=detail)

    def _note_origin(self) -> None:
        attempt, spec = self.teller.attempt, self.tracker.spec or {}
        if attempt is not None and not self._has_origin and spec.get("attempt") == attempt:
            with self._record.together():
                save_origin(self._record, self.row.id, attempt, spec)
                self._record.save_attempt(self.row.id, attempt, spec=spec)
            self._has_origin = True

    def _tell(self, sighting: Sighting, now: datetime) -> None:
        if sighting.log and sighting.of is not None:
            self.teller.log(sighting.of, sighting.log, sighting.log_offset, now)
            self._keep_cursor(sighting.of)
        view = self.tracker.view
        if sighting.heartbeat and view is not None and isinstance(view.heartbeat, Present):
            self.teller.guard(view.number, view.heartbeat.value, now)
        for row in sighting.metrics:
            self.teller.emit("metrics", now, "", level=Level.DETAIL, detail=row)
        for evidence in sighting.predictions:
            detail = evidence_json(evidence)
            self.teller.emit("prediction", now, evidence.text, level=Level.WARNING, detail=detail)

    def _keep_cursor(self, attempt: int) -> None:
        """Keep how far the attempt's log was told."""
        shown = self.teller.shown(attempt)
        if shown is not None:
            self._samples.cursor(self.row.id, attempt, shown, None)

    # -- one turn

    def needs_turn(self, now: datetime) -> bool:
        """Whether there is anything to conclude."""
        return self._pace.is_due(now, is_calm=self._is_calm)

    @property
    def _is_calm(self) -> bool:
        """Nothing is due, and nothing is waited for."""
        state = self.diagnosis.state if self.diagnosis is not None else None
        is_open = state in (None, RunState.HUNG) or (state is RunState.DEAD and self.ended is None)
        has_act = self.decision is not None and self.acting
        return not (is_open or has_act or self.busy or self.kernel_wait.is_on)

    def turn(self, now: datetime) -> Decision | None:
        """Diagnose and decide; return the decision if it is an act that is due now.

        Raises:
            RecordError: The record cannot be written.
        """
        self._heed_clock(now)
        snapshot = self.tracker.snapshot(now)
        if self.busy:
            return None
        if self.ended is None:
            self.teller.still_blind(now, self.tracker.looked_at)
        if snapshot is None or (not self.tracker.is_synced and self.tracker.liveness == NOT_LOOKED):
            return None
        diagnosis = diagnose(snapshot, self._limits())
        is_new = self.diagnosis is None or self.diagnosis.state is not RunState.DEAD
        if self.kernel_wait.holds(diagnosis, now, is_new=is_new):
            return None
        if self.ended is not None and diagnosis.state in _UNSEEN:
            return None  # its end was seen, and stays true whatever cannot be seen now
        if self._note(diagnosis, snapshot, now):
            self._take_up(diagnosis, snapshot, now)
        elif self.decision is None and self._wants_decision(diagnosis):
            self._decide(diagnosis, snapshot, now)
        self.patterns.look(self.tracker, snapshot, diagnosis, now)
        decision = self.decision
        if decision is None or not self.acting or not decision.kind.is_relaunch:
            return None
        return decision if decision.not_before is None or decision.not_before <= now else None

    def _heed_clock(self, now: datetime) -> None:
        """A clock that was set back holds nothing up: what waits for an instant waits as long as before."""
        back = self._pace.set_back_by(now)
        if not back:
            return
        self.decision = earlier(self.decision, back) if self.decision is not None else None
        if self._kept is not None:
            self._kept = replace(self._kept, decision=earlier(self._kept.decision, back))

    @property
    def wants_stacks(self) -> bool:
        """Whether it hangs and its ranks were not asked yet; a watch that only observes asks nobody."""
        return self._hangs and self.acting and not self.busy and self.hang_look.is_wanted

    @property
    def awaits_stacks(self) -> bool:
        """Whether its ranks are being asked: nothing is done about a hang before they have answered."""
        return self._hangs and self.hang_look.is_under_way

    @property
    def _hangs(self) -> bool:
        return self.diagnosis is not None and self.diagnosis.state is RunState.HUNG

    def tell_stacks(self, error: BaseException | None, now: datetime) -> None:
        """Tell where the ranks are, or why nobody knows; that holds nothing up."""
        taken = self.hang_look.taken
        if error is not None or taken is None:
            self.teller.emit("stacks", now, f"could not be had: {error}", level=Level.WARNING)
            return
        self.teller.emit("stacks", now, taken.text, level=Level.WARNING, detail=taken.detail())

    def _limits(self) -> Limits:
        return self.playbook.limits_for(self.tracker.median_step_s, self.tracker.median_phase_s)

    def _wants_decision(self, diagnosis: Diagnosis) -> bool:
        wanted = (RunState.DEAD, RunState.HUNG, RunState.CONTAINER_STOPPED)
        return self.ended is None and diagnosis.state in wanted

    def _note(self, diagnosis: Diagnosis, snapshot: Snapshot, now: datetime) -> bool:
        before, self.diagnosis = self.diagnosis, diagnosis
        key = (diagnosis.state, diagnosis.failure, diagnosis.fingerprint)
        if before is not None and (before.state, before.failure, before.fingerprint) == key:
            return False
        old = before.state if before else None
        with self._record.together():
            self._record.transition(
                self.row.id, snapshot.attempt, old, diagnosis.state, diagnosis.summary, now
            )
            if diagnosis.state in _ENDED or diagnosis.state is RunState.HUNG:
                save_end(self._record, self.row.id, self.tracker, diagnosis, snapshot)
            if diagnosis.state not in _UNTOLD:
                self._record.diagnosis(self.row.id, snapshot.attempt, diagnosis, now)
        self.teller.diagnosis(diagnosis, now, self.tracker.looked_at)
        if diagnosis.state in _LIVING:
            self._kept = None
            self.patience.reset()
        self.decision = None
        if diagnosis.state is not RunState.HUNG:
            self.hang_look.forget()
        # A person who relaunches stops the run for a moment only; the next attempt is about to come.
        is_passing = diagnosis.state is RunState.STOPPED and snapshot.stop_reason == RELAUNCH_REASON
        self.ended = None if is_passing else _FINAL_EXIT.get(diagnosis.state)
        return True

    def _take_up(self, diagnosis: Diagnosis, snapshot: Snapshot, now: datetime) -> None:
        """Go on with the decision that was made for the same sight before a cut, or decide."""
        if self._kept is not None and self._kept.holds(snapshot.attempt, diagnosis, snapshot.stop_by):
            self.decision = self._kept.decision
            if self._kept.diagnosis.state is not diagnosis.state:
                self.patience.reset()  # that was of the stop; the start is another act
                self._kept = Kept(snapshot.attempt, diagnosis, self.decision)
        else:
            self._decide(diagnosis, snapshot, now)

    def _decide(self, diagnosis: Diagnosis, snapshot: Snapshot, now: datetime) -> None:
        history = self._record.history(self.row.id)
        if diagnosis.state is RunState.DEAD:
            self.patterns.died(history, snapshot, now)
        jitter, view = random.uniform(-1.0, 1.0), self.tracker.view
        known = facts(self.tracker.spec, view.environment if view is not None else None)
        decision = decide(diagnosis, self.playbook, history, snapshot, now, jitter, known)
        if decision.kind is not ActKind.NONE:
            self.decision = decision
            if diagnosis.state in (RunState.DEAD, RunState.HUNG):
                self._kept = Kept(snapshot.attempt, diagnosis, decision)
            self.teller.decision(decision, now, acting=self.acting)
        self._conclude(decision, diagnosis, snapshot, now)

    def overrule(self, decision: Decision, now: datetime) -> None:
        """Put another decision in the place of one that cannot be carried out.

        Raises:
            RecordError: The record cannot be written.
        """
        snapshot = self.tracker.snapshot(now)
        if snapshot is None or self.diagnosis is None:
            return
        self.decision = decision
        if self._kept is not None:
            self._kept = replace(self._kept, decision=decision)
        self.teller.decision(decision, now, acting=self.acting)
        self._conclude(decision, self.diagnosis, snapshot, now)

    def _conclude(self, decision: Decision, diagnosis: Diagnosis, snapshot: Snapshot, now: datetime) -> None:
        if decision.kind in (ActKind.CALL, ActKind.GIVE_UP):
            save_call(self._record, self.row.id, snapshot.attempt, decision, diagnosis.summary, now)
            self.ended = Exit.GAVE_UP if decision.kind is ActKind.GIVE_UP else Exit.NEEDS_PERSON
        elif diagnosis.state is RunState.DEAD and (not self.acting or decision.kind is ActKind.NONE):
            self.ended = Exit.FAILED
        elif diagnosis.state is RunState.HUNG and not self.acting:
            self.ended = Exit.HUNG
