"""The only module that changes the world: start an attempt, stop a run. Intent is recorded before each act.

Every act is idempotent: the attempt number is the fencing token, so a repeated start is refused by the
guest and a repeated stop finds nothing left.
"""

from __future__ import annotations

import getpass
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator.clock import Clock, timestamp
from orchestrator.errors import BlindError, GuestRefused, RunAlive
from orchestrator.launch import RunSpec, start_request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.record import Record
    from orchestrator.types.decision import Remedy
    from orchestrator.wire import Message

START_TIMEOUT_S = 60.0
_REFUSED_AS_ALIVE = frozenset({"run_alive", "attempt_exists"})


class Client(Protocol):
    """What acting needs of the guest."""

    def call(self, verb: str, request: Mapping[str, object], *, timeout_s: float) -> list[Message]:
        """Ask once."""
        ...


def actor() -> dict[str, object]:
    """Return who acts: this process, for whoever reads run.json. Nothing is decided by it."""
    return {"user": _user(), "host": socket.gethostname(), "pid": os.getpid()}


def placed_actor() -> dict[str, object]:
    """Return who acts, and where its number counts: this boot of this machine, and this namespace of pids."""
    return {**actor(), "place": _place()}


def _place() -> str | None:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:  # not Linux
        return None


def is_gone(who: Mapping[str, object]) -> bool:
    """Whether who acted was a process of this very place that is no more; False where that is not known."""
    pid, place = who.get("pid"), _place()
    if place is None or who.get("place") != place or not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return str(os.getuid())


class Actor:
    """Carries out acts for one record."""

    def __init__(self, record: Record, clock: Clock) -> None:
        self._record = record
        self._clock = clock

    def start(
        self,
        client: Client,
        run_id: int,
        spec: RunSpec,
        *,
        state_dir: str,
        attempt: int,
        ct: int | None,
        by: str,
        reason: str,
        env: Mapping[str, str] | None,
        env_update: Mapping[str, str] | None = None,
        rung: int | None = None,
        changes: Mapping[str, str] | None = None,
        remedies: Sequence[Remedy] = (),
        finishes: str | None = None,
        min_free_bytes: int = 64 << 20,
    ) -> Message:
        """Start attempt `attempt` and return the guest's `started` message.

        `finishes`: the time of the stop that this start is to follow; a later word of a person forbids it.

        Raises:
            RunAlive: Another trainer lives or another watcher was first.
            GuestRefused: The container is not ready; nothing runs.
            BlindError: The connection broke; whether it started is unknown until looked at again.
        """
        request = start_request(
            spec,
            state_dir=state_dir,
            attempt=attempt,
            created_at=timestamp(self._clock.now()),
            env=env,
            env_update=env_update,
            min_free_bytes=min_free_bytes,
            unless_stopped=by == "watch" or finishes is not None,
            finishes=finishes,
            remedies=remedies,
        )
        kind = "launch" if attempt == 1 else "relaunch"
        # run.json carries who started it and why: a watcher that is killed before it can write that down
        # would leave an attempt that looks like a person's, and a person's launch refills every budget.
        whose = {
            "ct": ct,
            "by": by,
            "actor": actor(),
            "rung": rung,
            "changes": dict(changes or {}),
            # Of the playbook, and no secret; what a person gives may be one.
            "env_changes": dict(env_update or {}) if by == "watch" else {},
            "remedies": [{"kind": remedy.kind.value, "step": remedy.step} for remedy in remedies],
        }
        request["spec"].update(whose)
        intent = {"attempt": attempt, "argv": request["spec"]["argv"], **whose, "pid": os.getpid()}
        action = self._record.intend(run_id, attempt, kind, reason, intent, self._clock.now())
        try:
            answer = client.call("start", request, timeout_s=START_TIMEOUT_S)
        except GuestRefused as refusal:
            self._record.outcome(action, f"refused: {refusal.reason}", self._clock.now(), error=str(refusal))
            if refusal.reason in _REFUSED_AS_ALIVE:
                raise RunAlive(f"{spec.run}: {refusal.message}", hint=refusal.hint) from refusal
            raise
        except BlindError as error:
            self._record.outcome(action, "unknown", self._clock.now(), error=str(error))
            raise
        started = next(message for message in answer if message["type"] == "started")
        now = self._clock.now()
        self._record.save_attempt(
            run_id,
            attempt,
            started_at=now,
            by=by,
            rung=rung,
            changes=dict(changes or {}),
            session=started.get("session"),
        )
        self._record.outcome(action, "started", now)
        return started

    def stop(
        self,
        client: Client,
        run_id: int | None,
        run: str,
        *,
        state_dir: str,
        attempt: int,
        by: str,
        reason: str,
        grace_s: float,
        unless_moved: Mapping[str, object] | None = None,
        then: Mapping[str, object] | None = None,
    ) -> Message:
        """End every process of the run and return the guest's `stopped` message; idempotent.

        `unless_moved` is how it was seen to stand still: the guest leaves alone what goes on again.
        `then` is what is to be started in its place; it is on the container's disk before the first signal.
        A stop with it, and one by the watch, means `attempt` alone.

        Raises:
            GuestRefused: Something could not be ended, or it moved.
            BlindError: The connection broke; stop again.
        """
        action: int | None = None
        if run_id is not None:
            intent = {"by": by, "grace_s": grace_s, "pid": os.getpid()}
            action = self._record.intend(run_id, attempt, "stop", reason, intent, self._clock.now())
        request: dict[str, Any] = {
            "state_dir": state_dir,
            "run": run,
            "by": by,
            "reason": reason,
            "grace_s": grace_s,
        }
        if by == "watch" or then is not None:
            request["only_attempt"] = attempt  # never the next one, which somebody may have just started
        if unless_moved is not None:
            request["unless_moved"] = dict(unless_moved)
        if then is not None:
            request["then"] = dict(then)
        try:
            answer = client.call("stop", request, timeout_s=grace_s + 60.0)
        except (GuestRefused, BlindError) as error:
            if action is not None:
                self._record.outcome(action, "failed", self._clock.now(), error=str(error))
            raise
        stopped = next(message for message in answer if message["type"] == "stopped")
        if action is not None:
            self._record.outcome(action, "stopped", self._clock.now())
        return stopped
