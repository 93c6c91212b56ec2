"""What a person does to a run: launch, stop, relaunch, adopt. One path: look, refuse, act, record."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.act import Actor, placed_actor
from orchestrator.classify import Limits, diagnose
from orchestrator.errors import BlindError, GuestRefused, NotFound, RunAlive
from orchestrator.handover import then_document
from orchestrator.launch import RELAUNCH_REASON, RunSpec, difference, spec_document, spec_from_document
from orchestrator.observe import is_alive, look
from orchestrator.preparing import check_gpus, prepare
from orchestrator.types.seen import Liveness, Present

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from orchestrator.clock import Clock
    from orchestrator.connection.guest import Progress
    from orchestrator.observe import RunTracker
    from orchestrator.record import Record, RunRow
    from orchestrator.site import Site
    from orchestrator.wire import Message

GOES_ON = "a watch starts it once that is mended; `dflashctl stop` gives it up"
NOTHING_LIVES = Liveness(lock_held=False, pids=(), supervisor=False, session=False)


@dataclass(frozen=True, kw_only=True)
class Launched:
    """What a launch came to. `already` is `alive` or `finished` if nothing was started."""

    row: RunRow
    attempt: int
    resumes_at: int | None
    already: str | None = None
    argv: tuple[str, ...] = ()
    changes: tuple[tuple[str, str, str], ...] = ()
    nothing_left: str | None = None  # why there is nothing to train, in words


def nothing_left(spec: RunSpec, reached: int | None) -> str | None:
    """Return words if the run is as far as its settings let it come; None where that is not known."""
    total = dict(spec.overrides).get("total_steps", "")
    if spec.is_command or reached is None or not total.isdecimal() or reached < int(total):
        return None
    return f"it has come to step {reached} already, and total_steps is {total}: nothing is left to train"


class Operator:
    """Does what a person asks, at one site."""

    def __init__(self, site: Site, record: Record, clock: Clock) -> None:
        self._site = site
        self._record = record
        self._clock = clock
        self._actor = Actor(record, clock)

    def launch(
        self,
        spec: RunSpec,
        env: Mapping[str, str],
        *,
        playbook: str | None,
        progress: Progress | None = None,
    ) -> Launched:
        """Start the run, or report that it lives already.

        Raises:
            ConfigError: A GPU is not there, or the trainer refused its configuration; nothing was started.
            CommandFailed: The trainer's environment is incomplete; nothing was started.
            BlindError: The container cannot be reached.
            GuestRefused: The container is not ready.
        """
        tracker = look(self._site, spec.run, self._clock)
        snapshot = tracker.snapshot(self._clock.now())
        before = tracker.view.number if tracker.view else 0
        if snapshot is not None and (is_alive(snapshot) or isinstance(snapshot.result, Present)):
            row = self._save(tracker, spec, playbook)
            already = "alive" if is_alive(snapshot) else "finished"
            return Launched(row=row, attempt=before, resumes_at=None, already=already)
        check_gpus(self._site, spec.gpus)
        spec = prepare(self._site, spec, progress)
        return self._start(spec, before + 1, env, playbook, tracker, reason="launched by its user")

    def relaunch(
        self,
        row: RunRow,
        change: Callable[[RunSpec], RunSpec],
        *,
        reason: str,
        progress: Progress | None = None,
    ) -> Launched:
        """Stop what lives and start the next attempt with the changed spec; the difference is recorded.

        Raises:
            NotFound: The run was never started there.
            ConfigError: The trainer refused the changed configuration; the living attempt was not stopped.
            BlindError: The container cannot be reached.
        """
        tracker = look(self._site, row.name, self._clock)
        snapshot = tracker.snapshot(self._clock.now())
        if snapshot is None or tracker.spec is None:
            raise NotFound(f"{row.target_key}: run {row.name!r} was never started there")
        old = spec_from_document(tracker.spec)
        # The change is checked before the old attempt is stopped: a typing error must not cost a living run.
        new = prepare(self._site, change(replace(old, inject=())), progress)
        changes = difference(old, new)
        at: str | None = None
        if is_alive(snapshot):
            # Whoever is killed between the stop and the start leaves word of what is to follow.
            then = then_document(
                new,
                state_dir=self._site.state_dir,
                attempt=snapshot.attempt + 1,
                reason=reason,
                changes={key: value for key, _, value in changes},
                actor=placed_actor(),
            )
            at = self._stop(row, snapshot.attempt, RELAUNCH_REASON, old.stop_grace_s, then).get("at")
        launched = self._start(
            new, snapshot.attempt + 1, None, row.playbook, tracker,
            reason=reason, changes=changes, finishes=at,
        )  # fmt: skip
        reached = snapshot.last_step if is_alive(snapshot) else tracker.checkpoint_step
        return replace(launched, changes=changes, nothing_left=nothing_left(new, reached))

    def stop(self, row: RunRow, *, reason: str, grace_s: float | None = None) -> Message:
        """End every process of the run; idempotent.

        Raises:
            BlindError: The container cannot be reached.
            GuestRefused: Something could not be ended.
        """
        grace = grace_s if grace_s is not None else float(row.spec.get("stop_grace_s") or 30.0)
        attempts = self._record.attempts(row.id)
        return self._stop(row, attempts[-1].n if attempts else 1, reason, grace, None)

    def _stop(
        self, row: RunRow, attempt: int, reason: str, grace_s: float, then: Mapping[str, object] | None
    ) -> Message:
        return self._actor.stop(
            self._site.client(),
            row.id,
            row.name,
            state_dir=self._site.state_dir,
            attempt=attempt,
            by="user",
            reason=reason,
            grace_s=grace_s,
            then=then,
        )

    def adopt(self, run: str, playbook: str | None) -> RunRow:
        """Take a run that someone else launched into the record.

        Raises:
            NotFound: No such run there.
        """
        tracker = look(self._site, run, self._clock)
        if tracker.spec is None:
            raise NotFound(
                f"{self._site.target_key}: no run {run!r} there", hint="`dflashctl launch` starts one"
            )
        return self._save(tracker, spec_from_document(tracker.spec), playbook)

    def _start(
        self,
        spec: RunSpec,
        attempt: int,
        env: Mapping[str, str] | None,
        playbook: str | None,
        tracker: RunTracker,
        *,
        reason: str,
        changes: tuple[tuple[str, str, str], ...] = (),
        finishes: str | None = None,
    ) -> Launched:
        row = self._save(tracker, spec, playbook)
        try:
            started = self._actor.start(
                self._site.client(),
                row.id,
                spec,
                state_dir=self._site.state_dir,
                attempt=attempt,
                ct=self._site.ct,
                by="user",
                reason=reason,
                env=env,
                changes={key: new for key, _, new in changes},
                finishes=finishes,
            )
        except RunAlive:
            if is_alive(look(self._site, spec.run, self._clock).snapshot(self._clock.now())):
                return Launched(row=row, attempt=attempt, resumes_at=None, already="alive")
            raise
        except GuestRefused as refusal:
            if refusal.reason == "start_failed":
                self._save_failed_start(row, attempt, changes)
            elif finishes is not None and refusal.reason != "stopped_by_user":
                refusal.hint = f"{refusal.hint}; {GOES_ON}" if refusal.hint else GOES_ON
            raise
        document = spec_document(spec, state_dir=self._site.state_dir, attempt=attempt, created_at="")
        return Launched(
            row=row,
            attempt=int(started["attempt"]),
            resumes_at=tracker.checkpoint_step,
            argv=tuple(document["argv"]),
        )

    def _save_failed_start(
        self, row: RunRow, attempt: int, changes: tuple[tuple[str, str, str], ...]
    ) -> None:
        """Write down an attempt that was made and could not be started: its number is used up."""
        now = self._clock.now()
        try:
            snapshot = look(self._site, row.name, self._clock).snapshot(now)
        except (BlindError, GuestRefused):
            return  # the refusal itself is told all the same
        if snapshot is None or snapshot.attempt != attempt or not isinstance(snapshot.exit, Present):
            return
        # The guest has said that nothing was started; its supervisor may still be on its way out.
        diagnosis = diagnose(replace(snapshot, liveness=Present(NOTHING_LIVES)), Limits())
        self._record.save_attempt(
            row.id,
            attempt,
            ended_at=now,
            failure=diagnosis.failure,
            fingerprint=diagnosis.fingerprint,
            by="user",
            changes={key: new for key, _, new in changes},
        )
        self._record.diagnosis(row.id, attempt, diagnosis, now)

    def _save(self, tracker: RunTracker, spec: RunSpec, playbook: str | None) -> RunRow:
        document = tracker.spec or spec_document(
            spec, state_dir=self._site.state_dir, attempt=0, created_at=""
        )
        target = self._site.target
        # Only plain data may go into the record.
        plain = json.loads(json.dumps(document))
        return self._record.save_run(
            spec.run, target.to_json(), target.key, plain, self._clock.now(), playbook=playbook
        )
