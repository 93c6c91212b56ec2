"""Carry out what was decided: gates and patience in the loop's thread, far calls in threads beside it."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.errors import ActRefused, BlindError, ConfigError, GuestRefused, RecordError, RunAlive
from orchestrator.gates import Closed, Gates, begun_elsewhere, closed_gates
from orchestrator.handover import handover_of
from orchestrator.launch import RunSpec, spec_from_document
from orchestrator.observe import NOT_LOOKED, standstill
from orchestrator.types.decision import ActKind, Decision
from orchestrator.types.failure import RunState
from orchestrator.watch.ending import save_call
from orchestrator.watch.events import Level
from orchestrator.watch.farcalls import FarCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from orchestrator.clock import Clock
    from orchestrator.handover import Handover
    from orchestrator.record import Record
    from orchestrator.types.snapshot import Snapshot
    from orchestrator.watch.farcalls import ActSite
    from orchestrator.watch.runwatch import RunWatch

logger = logging.getLogger(__name__)

MAX_AT_ONCE = 8  # channels of one host's connection
# Only these hold back the stop of what hangs; what it holds itself is freed by stopping it.
_STOP_GATES = frozenset({"blind", "container", "stopped", "finished"})
# The guest says that waiting will not help.
_HOPELESS = frozenset({"no_checkpoint"})


@dataclass(frozen=True)
class ActEnded:
    """How an act of a thread went; handled in the loop's thread."""

    run: RunWatch
    kind: str  # "stop", "start", or "look", which is no act
    attempt: int  # the one stopped or started
    text: str
    error: BaseException | None = None


def _wanted(run: RunWatch, decision: Decision) -> tuple[RunSpec, Handover | None]:
    """Return what is to be started, and the person's relaunch that this finishes, if it does."""
    handover = handover_of(run.tracker.stop) if run.handing.is_due else None
    if handover is not None:
        return handover.spec, handover
    return spec_from_document(run.tracker.spec or {}).with_changes(decision.changes), None


class Acts:
    """The acts of one watcher. Everything but the threads' own calls runs in the loop's thread."""

    def __init__(
        self, record: Record, sites: Mapping[str, ActSite], clock: Clock, post: Callable[[ActEnded], None]
    ) -> None:
        self._record = record
        self._far = FarCalls(record, sites, clock)
        self._clock = clock
        self._post = post
        self._rooms: dict[str, threading.BoundedSemaphore] = {}  # a host that hangs holds up no other
        self._threads: list[threading.Thread] = []

    # -- beginning

    def consider(self, run: RunWatch, decision: Decision) -> None:
        """Begin what is due, unless a gate is closed or it was refused a moment ago."""
        now, ticks = self._clock.now(), self._clock.monotonic()
        snapshot = run.tracker.snapshot(now)
        if snapshot is None or not run.patience.is_due(ticks) or run.diagnosis is None:
            return
        try:
            spec, handover = _wanted(run, decision)
        except ConfigError as error:
            self._refused(run, "spec", f"not yet: {error}")
            return
        closed = self._closed(run, snapshot, spec, handover)
        if closed:
            # The first reading of the GPUs comes a moment after the first look: that is no news.
            is_early = len(closed) == 1 and snapshot.gpus == NOT_LOOKED
            names = frozenset() if is_early else frozenset(name for item in closed for name in item.names)
            if run.patience.hold(names, ticks):
                why = "; ".join(item.why for item in closed)
                run.teller.emit("gate", now, f"not yet: {why}", level=Level.WARNING)
                self._name_holders(run, snapshot.attempt, closed)
            self._call_if_overdue(run, "; ".join(item.why for item in closed))
        elif run.diagnosis.state is RunState.HUNG:
            seen = standstill(run.tracker.view) if run.tracker.view is not None else {}
            if run.patience.tries == 0:
                run.teller.emit("act", now, f"stopping attempt {snapshot.attempt}, which hangs")
            self._begin(
                run,
                "stop",
                snapshot.attempt,
                lambda: self._far.stop(run.row, spec, snapshot.attempt, decision, seen),
            )
        else:
            attempt = snapshot.attempt + 1
            if run.patience.tries == 0:
                run.teller.emit("act", now, f"relaunching as attempt {attempt}")
            self._begin(
                run, "start", attempt, lambda: self._far.start(run.row, spec, attempt, decision, handover)
            )

    def look_into(self, run: RunWatch) -> None:
        """Ask every rank of what hangs where it is, before anything is done about it."""
        attempt = run.teller.attempt
        if attempt is None or not run.patience.is_due(self._clock.monotonic()):
            return
        run.hang_look.begin()

        def ask() -> str:
            taken = self._far.stacks(run.row, attempt)
            run.hang_look.taken = taken
            return taken.text

        # Not `busy`: a guest that does not answer must not keep the run's end from being seen.
        self._spawn(run, "stacks", attempt, ask)

    @staticmethod
    def _closed(
        run: RunWatch, snapshot: Snapshot, spec: RunSpec, handover: Handover | None
    ) -> tuple[Closed, ...]:
        closed = closed_gates(snapshot, spec.gpus, Gates.of(run.playbook))
        closed += begun_elsewhere(run.tracker.spec or {}, run.row.target.get("ct"))
        if handover is not None:  # the guest refuses it once that stop is not the last word
            return tuple(item for item in closed if item.gate != "stopped")
        if run.diagnosis is not None and run.diagnosis.state is RunState.HUNG:
            return tuple(item for item in closed if item.gate in _STOP_GATES)
        return closed

    def _name_holders(self, run: RunWatch, attempt: int, closed: tuple[Closed, ...]) -> None:
        """Ask the host who holds the GPUs; nobody is touched, and the run's turns go on meanwhile."""
        held = [item.holders for item in closed if item.holders is not None]
        if not held:
            return
        pids = sorted({pid for some in held for pid in some})
        self._spawn(run, "look", attempt, lambda: self._far.holders(run.row, pids))

    def _begin(self, run: RunWatch, kind: str, attempt: int, act: Callable[[], str]) -> None:
        run.busy = True
        self._spawn(run, kind, attempt, act)

    def _spawn(self, run: RunWatch, kind: str, attempt: int, act: Callable[[], str]) -> None:
        host = self._far.host_of(run.row)
        room = self._rooms.setdefault(host, threading.BoundedSemaphore(MAX_AT_ONCE))

        def work() -> None:
            try:
                with room:
                    ended = ActEnded(run, kind, attempt, act())
            except BaseException as error:  # noqa: BLE001  # the loop's thread judges it
                ended = ActEnded(run, kind, attempt, "", error)
            self._post(ended)

        # A daemon: Ctrl-C does not wait for a far side that does not answer. The intent is on disk.
        thread = threading.Thread(target=work, name=f"{kind} {run.row.name}", daemon=True)
        self._threads = [*(t for t in self._threads if t.is_alive()), thread]
        thread.start()

    # -- ending

    def finish(self, ended: ActEnded) -> None:
        """Take in how an act went.

        Raises:
            RecordError: The record could not be written; acting stops.
        """
        run, error = ended.run, ended.error
        if ended.kind == "look":
            self._looked(ended)
            return
        if isinstance(error, RecordError):
            raise error
        if ended.kind == "stacks":
            self._asked(ended)
            return
        run.busy = False
        if error is None:
            if (run.teller.attempt or 0) < ended.attempt or ended.kind == "stop":
                run.patience.done(self._clock.monotonic())
            level = Level.GOOD if ended.kind == "start" else Level.INFO
            run.teller.emit("outcome", self._clock.now(), ended.text, level=level)
        elif isinstance(error, RunAlive):
            self._refused(run, error.code, f"not doubled: {error}", kind="outcome", level=Level.INFO)
        elif isinstance(error, GuestRefused) and error.reason in _HOPELESS:
            run.overrule(Decision(kind=ActKind.CALL, reason=str(error)), self._clock.now())
        elif isinstance(error, GuestRefused):
            self._refused(run, error.reason, f"not yet: {error}")
        elif isinstance(error, (ActRefused, BlindError, ConfigError)):
            self._refused(run, error.code, f"not yet: {error}")
        else:
            logger.error("an act failed", exc_info=error, extra={"run": run.row.name})
            self._refused(run, "fault", f"the act failed: {error!r}", kind="fault", level=Level.BAD)

    def _asked(self, ended: ActEnded) -> None:
        """The ranks have answered, or cannot be asked; what is held still is asked again, and left alone."""
        run, error = ended.run, ended.error
        taken = run.hang_look.taken
        paused = taken.paused if taken is not None and error is None else ""
        run.hang_look.end(again=isinstance(error, ActRefused) or bool(paused))
        if run.teller.attempt != ended.attempt:
            return
        if isinstance(error, ActRefused):
            self._refused(run, error.code, f"not yet: {error}")
        elif not paused or run.patience.tries == 0:
            run.tell_stacks(error, self._clock.now())
        if paused:
            self._refused(run, "paused", f"not yet: {paused}")

    def _looked(self, ended: ActEnded) -> None:
        if ended.error is not None:
            logger.info("%s: the GPUs' holders are not known: %s", ended.run.row.name, ended.error)
        elif ended.text and ended.run.teller.attempt == ended.attempt:
            detail = {"gate": "gpu", "holders": ended.text}
            ended.run.holders = ended.text
            ended.run.teller.emit("gate", self._clock.now(), ended.text, level=Level.WARNING, detail=detail)

    def _refused(
        self, run: RunWatch, name: str, text: str, *, kind: str = "gate", level: Level = Level.WARNING
    ) -> None:
        if run.patience.refuse(name, self._clock.monotonic()):
            run.teller.emit(kind, self._clock.now(), text, level=level)
        self._call_if_overdue(run, text)

    def _call_if_overdue(self, run: RunWatch, why: str) -> None:
        """Tell once that it has waited too long; it goes on waiting, for a gate may still open at night."""
        ticks, now = self._clock.monotonic(), self._clock.now()
        if not run.patience.calls(ticks) or run.diagnosis is None:
            return
        minutes = run.patience.held_s(ticks) / 60
        held = f"; {run.holders}" if run.holders and "GPU" in why else ""
        reason = f"it could not be brought back for {minutes:.0f} min: {why.removeprefix('not yet: ')}{held}"
        decision = Decision(kind=ActKind.CALL, reason=reason)
        run.teller.decision(decision, now, acting=True)
        attempt = run.teller.attempt or 1
        save_call(self._record, run.row.id, attempt, decision, run.diagnosis.summary, now, ends=False)

    def join(self, limit_s: float) -> None:
        """Wait for the acts under way, not longer than the limit."""
        deadline = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
