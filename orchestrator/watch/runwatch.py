"""One run under watch: messages in, a diagnosis and a decision out, each recorded and told once."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from orchestrator.classify import diagnose
from orchestrator.decide import decide
from orchestrator.ladder import facts
from orchestrator.observe import NOT_LOOKED, RunTracker
from orchestrator.types.decision import ActKind, Decision
from orchestrator.types.failure import Diagnosis, RunState
from orchestrator.watch.chronicle import Chronicle
from orchestrator.watch.company import Company
from orchestrator.watch.ending import save_call, save_sight
from orchestrator.watch.events import Level, Sink
from orchestrator.watch.handing import Handing
from orchestrator.watch.hosttelling import HostTeller
from orchestrator.watch.kernelwait import KernelWait
from orchestrator.watch.noticing import Notices
from orchestrator.watch.pace import Pace
from orchestrator.watch.patience import Patience
from orchestrator.watch.patterns import Patterns
from orchestrator.watch.stacktaking import HangLook
from orchestrator.watch.telling import Teller
from orchestrator.watch.verdict import Verdict

if TYPE_CHECKING:
    from datetime import datetime

    from orchestrator.classify.kernel import KernelEvent
    from orchestrator.errors import Exit
    from orchestrator.mirror import Keeper
    from orchestrator.playbook import Playbook
    from orchestrator.record import Record, RunRow
    from orchestrator.types.snapshot import Snapshot
    from orchestrator.watch.samplebuffer import SampleBuffer
    from orchestrator.wire import Message

_UNSEEN = frozenset({RunState.BLIND, RunState.CONTAINER_STOPPED, RunState.CONTAINER_FROZEN})


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
        mirror: Keeper | None = None,
    ) -> None:
        self.row = row
        self.playbook = playbook
        self.tracker = RunTracker(row.name, row.target.get("ct"))
        self.tracker.custom = playbook.custom
        self.teller = Teller(row, record, sink)
        self.notices = Notices(row, record, self.teller)
        self.host_teller = HostTeller(self.teller)
        self.chronicle = Chronicle(row, record, self.teller, samples, mirror)
        self.kernel_wait = KernelWait()
        self.patterns = Patterns(row, record, self.teller, playbook)
        self.company = Company(self.teller)
        self.patience = Patience()
        self.acting = acting
        self.verdict = Verdict()
        self.busy = False  # an act is being carried out
        self.hang_look = HangLook()
        self.handing = Handing()
        self.holders = ""  # who keeps the GPUs from a relaunch, as the host tells it
        self._record = record
        self._is_deaf = False
        self._pace = Pace()

    @property
    def diagnosis(self) -> Diagnosis | None:
        """What is seen of the newest attempt; None before the first look."""
        return self.verdict.diagnosis

    @property
    def decision(self) -> Decision | None:
        """What is to be done; None if nothing is."""
        return self.verdict.decision

    @property
    def ended(self) -> Exit | None:
        """The exit code for its end; None while there is something to watch."""
        return self.verdict.ended

    # -- taking in

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
        self.chronicle.take(message, sighting, self.tracker, now)
        if sighting.metrics and sighting.of is not None:
            self.patterns.feed(sighting.of, sighting.metrics)
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

    def _begin_attempt(self, attempt: int, now: datetime) -> None:
        self.verdict.forget()
        self.handing.begin()
        self.patience.reset()
        self.holders = ""
        self.patterns.begin(attempt)
        self.chronicle.begin(attempt, self.tracker.spec or {}, now)

    # -- one turn

    def needs_turn(self, now: datetime) -> bool:
        """Whether there is anything to conclude."""
        return self._pace.is_due(now, is_calm=self._is_calm)

    @property
    def _is_calm(self) -> bool:
        """Nothing is due, and nothing is waited for."""
        has_act = self.decision is not None and self.acting
        return not (self.verdict.is_open or has_act or self.busy or self.kernel_wait.is_on)

    def turn(self, now: datetime) -> Decision | None:
        """Diagnose and decide; return the decision if it is an act that is due now.

        Raises:
            RecordError: The record cannot be written.
        """
        if back := self._pace.set_back_by(now):
            self.verdict.set_back(back)
        snapshot = self.tracker.snapshot(now)
        if self.busy:
            return None
        if self.ended is None:
            self.teller.still_blind(now, self.tracker.looked_at)
        if snapshot is None or (not self.tracker.is_synced and self.tracker.liveness == NOT_LOOKED):
            return None
        limits = self.playbook.limits_for(self.tracker.median_step_s, self.tracker.median_phase_s)
        diagnosis = diagnose(snapshot, limits)
        if self.kernel_wait.holds(diagnosis, now, is_new=not self.verdict.is_told_dead):
            return None
        if self.ended is not None and diagnosis.state in _UNSEEN:
            return None  # its end was seen, and stays true whatever cannot be seen now
        if self._note(diagnosis, snapshot, now):
            self._take_up(diagnosis, snapshot, now)
        elif self.verdict.wants_decision:
            self._decide(diagnosis, snapshot, now)
        self._hand_over(snapshot, now)
        self.patterns.look(self.tracker, snapshot, diagnosis, now)
        return self.verdict.due(now) if self.acting else None

    def _hand_over(self, snapshot: Snapshot, now: datetime) -> None:
        """Finish a relaunch of which only the stop was done."""
        if self.verdict.is_living:
            if words := self.handing.lives_on(self.tracker.spec, snapshot):
                self.teller.emit("gate", now, words, level=Level.WARNING)
        elif self.verdict.awaits_relaunch:
            decision = self.handing.decide(self.tracker.stop, now, acting=self.acting)
            if decision is not None:
                self.verdict.decide(snapshot.attempt, decision, acting=self.acting)
                self._tell_decision(snapshot.attempt, decision, now)

    @property
    def is_over(self) -> bool:
        """Whether nothing is to be watched any more; who is called to a hang gets to know where it hangs."""
        is_open = self.acting and self.verdict.hangs and not self.hang_look.is_answered
        return self.ended is not None and not self.busy and not is_open

    @property
    def wants_stacks(self) -> bool:
        """Whether it hangs and its ranks were not asked yet; a watch that only observes asks nobody."""
        return self.verdict.hangs and self.acting and not self.busy and self.hang_look.is_wanted

    @property
    def awaits_stacks(self) -> bool:
        """Whether its ranks are being asked: nothing is done about a hang before they have answered."""
        return self.verdict.hangs and self.hang_look.is_under_way

    def tell_stacks(self, error: BaseException | None, now: datetime) -> None:
        """Tell where the ranks are, or why nobody knows; that holds nothing up."""
        taken = self.hang_look.taken
        if error is not None or taken is None:
            self.teller.emit("stacks", now, f"could not be had: {error}", level=Level.WARNING)
            return
        self.teller.emit("stacks", now, taken.text, level=Level.WARNING, detail=taken.detail())

    def _note(self, diagnosis: Diagnosis, snapshot: Snapshot, now: datetime) -> bool:
        before = self.diagnosis
        if not self.verdict.note(diagnosis, snapshot.stop_reason):
            return False
        save_sight(self._record, self.row.id, self.tracker, before, diagnosis, snapshot)
        self.teller.diagnosis(diagnosis, now, self.tracker.looked_at)
        if self.verdict.is_living:
            self.patience.reset()
        if not self.verdict.hangs:
            self.hang_look.forget()
        return True

    def _take_up(self, diagnosis: Diagnosis, snapshot: Snapshot, now: datetime) -> None:
        """Go on with the decision that was made for the same sight before a cut, or decide."""
        kept = self.verdict.resume(snapshot.attempt, snapshot.stop_by)
        if kept is None:
            self._decide(diagnosis, snapshot, now)
        elif kept.diagnosis.state is not diagnosis.state:
            self.patience.reset()  # that was of the stop; the start is another act

    def _decide(self, diagnosis: Diagnosis, snapshot: Snapshot, now: datetime) -> None:
        history = self._record.history(self.row.id)
        if diagnosis.state is RunState.DEAD:
            self.patterns.died(history, snapshot, now)
        jitter, view = random.uniform(-1.0, 1.0), self.tracker.view
        known = facts(self.tracker.spec, view.environment if view is not None else None)
        decision = decide(diagnosis, self.playbook, history, snapshot, now, jitter, known)
        self.verdict.decide(snapshot.attempt, decision, acting=self.acting)
        if decision.kind is not ActKind.NONE:
            self._tell_decision(snapshot.attempt, decision, now)

    def overrule(self, decision: Decision, now: datetime) -> None:
        """Put another decision in the place of one that cannot be carried out.

        Raises:
            RecordError: The record cannot be written.
        """
        snapshot = self.tracker.snapshot(now)
        if snapshot is None or self.diagnosis is None:
            return
        self.verdict.overrule(decision, acting=self.acting)
        self._tell_decision(snapshot.attempt, decision, now)

    def _tell_decision(self, attempt: int, decision: Decision, now: datetime) -> None:
        self.teller.decision(decision, now, acting=self.acting)
        if decision.kind in (ActKind.CALL, ActKind.GIVE_UP) and self.diagnosis is not None:
            save_call(self._record, self.row.id, attempt, decision, self.diagnosis.summary, now, ends=True)
