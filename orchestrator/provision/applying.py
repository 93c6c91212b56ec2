"""The steps in order: each looked at, done only where it is lacking, and looked at again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from orchestrator.errors import CommandFailed, ConfigError, GuestRefused, OrchestratorError
from orchestrator.provision.acting import Actor, StepFailed
from orchestrator.provision.looking import look
from orchestrator.provision.plan import Blocked, Fine, judge
from orchestrator.provision.wheelhouse import Wheelhouse, check_fit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orchestrator.clock import Clock
    from orchestrator.provision.form import Provision, Step
    from orchestrator.provision.plan import Wishes
    from orchestrator.provision.saying import Moment
    from orchestrator.provision.seen import Seen
    from orchestrator.site import Site


class Status(str, Enum):
    """What came of a step."""

    OK = "ok"
    CHANGED = "changed"
    WOULD = "would"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A step's end: what was seen before, what was done (or would be), and the error if it failed."""

    step: str
    status: Status
    seen: str
    does: str | None = None
    seconds: float = 0.0
    error: OrchestratorError | None = None

    @property
    def tail(self) -> tuple[str, ...]:
        """What a failed step said last."""
        return self.error.tail if isinstance(self.error, StepFailed) else ()


@dataclass(frozen=True, kw_only=True)
class Job:
    """A provisioning: what, where, by what."""

    site: Site
    provision: Provision
    wishes: Wishes
    clock: Clock
    house: Wheelhouse | None = None


def check(job: Job) -> Iterator[Outcome]:
    """Yield what would be done; nothing is changed.

    Raises:
        BlindError: The container cannot be reached.
    """
    seen = look(job.site, job.provision, job.wishes)
    for step in job.provision.steps:
        verdict = judge(step, seen, job.wishes)
        if isinstance(verdict, Fine):
            yield Outcome(step=step.name, status=Status.OK, seen=verdict.seen)
        elif isinstance(verdict, Blocked):
            yield Outcome(
                step=step.name, status=Status.FAILED, seen=verdict.seen, error=_blocked(job, step, verdict)
            )
        elif (error := _unfit(job, step, seen)) is not None:
            yield Outcome(step=step.name, status=Status.FAILED, seen=verdict.seen, error=error)
        else:
            yield Outcome(step=step.name, status=Status.WOULD, seen=verdict.seen, does=verdict.does)


def apply(job: Job, begin: Callable[[Step, str], Callable[[Moment], None]]) -> Iterator[Outcome]:
    """Do what is lacking and yield each step's outcome; after one that failed the rest is skipped.

    `begin` is told a step that is about to be done, and gives who is told how far it is.

    Raises:
        BlindError: The container cannot be reached.
    """
    actor = Actor(job.site, job.provision, job.wishes, job.house, job.clock)
    seen = look(job.site, job.provision, job.wishes)
    failed: str | None = None
    for step in job.provision.steps:
        if failed is not None:
            yield Outcome(step=step.name, status=Status.SKIPPED, seen=f"{failed} failed")
            continue
        verdict = judge(step, seen, job.wishes)
        if isinstance(verdict, Fine):
            yield Outcome(step=step.name, status=Status.OK, seen=verdict.seen)
            continue
        started = job.clock.monotonic()
        error: OrchestratorError | None
        if isinstance(verdict, Blocked):
            error = _blocked(job, step, verdict)
        else:
            tell = begin(step, verdict.does)
            error = _unfit(job, step, seen) or _attempt(actor, step, seen, tell)
            if error is None:
                seen = look(job.site, job.provision, job.wishes)
                after = judge(step, seen, job.wishes)
                if not isinstance(after, Fine):
                    what = f"{job.site.target_key}: {step.name}: it was done, and still: {after.seen}"
                    error = CommandFailed(what)
        took = job.clock.monotonic() - started
        failed = step.name if error else None
        status = Status.FAILED if error else Status.CHANGED
        does = None if isinstance(verdict, Blocked) else verdict.does
        yield Outcome(step=step.name, status=status, seen=verdict.seen, does=does, seconds=took, error=error)


def _attempt(
    actor: Actor, step: Step, seen: Seen, tell: Callable[[Moment], None]
) -> OrchestratorError | None:
    """Do a step; what went wrong is the step's, with what is said of it."""
    try:
        actor.do(step, seen, tell)
    except OrchestratorError as error:
        return error
    return None


def _unfit(job: Job, step: Step, seen: Seen) -> ConfigError | None:
    """Return why the wheelhouse cannot serve this container."""
    if step.venv is None or job.house is None or job.wishes.lock is None or seen.minor is None:
        return None
    try:
        needs_pip = "ensurepip" not in seen.modules
        check_fit(job.house, step.venv, job.wishes.lock, seen.minor, needs_pip=needs_pip)
    except ConfigError as error:
        return error
    return None


def _blocked(job: Job, step: Step, verdict: Blocked) -> GuestRefused:
    message = f"{job.site.target_key}: {step.name}: {verdict.seen}"
    return GuestRefused(message, reason="blocked", hint=verdict.fix)
