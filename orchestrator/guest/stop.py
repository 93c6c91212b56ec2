"""`stop`: the intent on disk, then no process of the run left."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator import wire
from orchestrator.guest import asked, clock, exits, files, liveness, lock, paths, processes, standstill
from orchestrator.guest.refusal import Refusal

if TYPE_CHECKING:
    from orchestrator.guest.link import Link

GRACE_S = 30.0
KILL_LIMIT_S = 15.0
# The supervisor gives leftovers 5 s, and writes exit.json after.
SUPERVISOR_LIMIT_S = 20.0
HIDING_S = 2.0
TURN_S = 0.1


@dataclass
class Stopper:
    """One stop; remembers whom it told to end and whom it killed."""

    run: paths.RunDir
    only_attempt: int | None = None  # a newer one is somebody else's, and is left alone
    terminated: set[int] = field(default_factory=set)
    _lonely_since: float | None = None
    killed: set[int] = field(default_factory=set)

    def left(self) -> tuple[int, ...]:
        """The run's live processes; who only holds the lock is found by its open file."""
        alive = liveness.look(self.run, self.run.attempts())
        if self.is_superseded():  # asked after the look: what the look found is older than the new attempt
            return ()
        if alive.pids or alive.supervisor or not alive.lock_held:
            self._lonely_since = None
            return alive.pids
        # A start holds it for an instant; only one that goes on holding it hides from us.
        self._lonely_since = self._lonely_since or clock.ticking()
        is_hiding = clock.ticking() - self._lonely_since > HIDING_S
        return liveness.holders(self.run) if is_hiding else ()

    def is_superseded(self) -> bool:
        """Whether there is a newer attempt than the one that was meant."""
        return self.only_attempt is not None and self.run.attempts()[-1:] != [self.only_attempt]

    def terminate(self, grace_s: float) -> None:
        """SIGTERM to each process once, as they come; SIGCONT so that a stopped one hears it."""
        deadline = clock.ticking() + grace_s
        while (left := self.left()) and clock.ticking() < deadline:
            new = [pid for pid in left if pid not in self.terminated]
            processes.send_signal(new, signal.SIGTERM)
            processes.send_signal(new, signal.SIGCONT)
            self.terminated.update(new)
            clock.wait(TURN_S)

    def kill(self) -> None:
        """SIGKILL until nobody is left, forks of the last moment too.

        Raises:
            Refusal: `not_stopped`: some process does not die (in the kernel, most often in a driver).
        """
        deadline = clock.ticking() + KILL_LIMIT_S
        while left := self.left():
            if clock.ticking() >= deadline:
                message = f'run "{self.run.name}": still alive after SIGKILL: {", ".join(map(str, left))}'
                hint = (
                    "a process in state D waits in the kernel; only the host can help (restart the container)"
                )
                raise Refusal("not_stopped", message, hint, pids=list(left))
            processes.send_signal(left, signal.SIGKILL)
            self.killed.update(left)
            clock.wait(TURN_S / 2)

    def await_supervisor(self) -> None:
        """Wait until the supervisor has written exit.json and let go of the lock; a stuck one is killed."""
        begin = clock.ticking()
        while clock.ticking() - begin < SUPERVISOR_LIMIT_S + KILL_LIMIT_S:
            alive = liveness.look(self.run, self.run.attempts())
            if self.is_superseded() or (alive.is_gone and not alive.supervisor):
                return
            if alive.supervisor_pid and clock.ticking() - begin > SUPERVISOR_LIMIT_S:
                processes.send_signal([alive.supervisor_pid], signal.SIGKILL)
            self.kill()
            clock.wait(TURN_S / 2)
        held = " (its lock is held)" if lock.is_held(self.run.lock) else ""
        raise Refusal("not_stopped", f'run "{self.run.name}": its supervisor does not end{held}')


def run(verb: str, request: wire.Message, link: Link) -> None:
    """Answer `stopping`, then `stopped`."""
    del verb
    place = paths.run_dir(request)
    grace_s = _grace(place, request)
    stopper = Stopper(place, asked.integer(request, "only_attempt", 0) or None)
    if stopper.is_superseded():
        link.tell("stopping", {"pids": [], "grace_s": grace_s})
        link.tell("stopped", {"already": True, "terminated": [], "killed": [], "at": None})
        return
    standstill.check(place, request)
    at = _write_intent(place, request)
    before = liveness.look(place, place.attempts())
    link.tell("stopping", {"pids": list(before.pids), "grace_s": grace_s})
    stopper.terminate(grace_s)
    stopper.kill()
    stopper.await_supervisor()
    newest = [] if stopper.is_superseded() else place.attempts()[-1:]
    if newest and (files.read_json(place.stop) or {}).get("attempt") != newest[0]:
        at = _write_intent(place, request)  # an attempt began while we stopped; it is meant too
    for number in newest:
        _close(place, number)
    fields = {
        "already": before.is_gone,
        "terminated": sorted(stopper.terminated),
        "killed": sorted(stopper.killed),
        "at": at,
    }
    link.tell("stopped", fields)


def _grace(place: paths.RunDir, request: wire.Message) -> float:
    spec = files.read_json(place.path / "run.json") or {}
    wanted = spec.get("stop_grace_s")
    default = float(wanted) if isinstance(wanted, (int, float)) else GRACE_S
    return asked.seconds(request, "grace_s", default, low=0, high=3600)


def _write_intent(place: paths.RunDir, request: wire.Message) -> str | None:
    """Write stop.json and return its time, which names this stop; None if another's word is left."""
    by = request.get("by")
    if by not in ("user", "watch"):
        raise Refusal("bad_request", f'by: {by!r} must be "user" or "watch"')
    with lock.turn(place.path):
        attempts = place.attempts()
        only = asked.integer(request, "only_attempt", 0)
        if only and attempts[-1:] != [only]:
            return None  # a newer one began while we waited for our turn; it was not meant
        before = files.read_json(place.stop) or {}
        if by == "watch" and before.get("by") == "user" and [before.get("attempt")] == attempts[-1:]:
            return None  # its user stopped it first, and that word must not be lost
        at = clock.now()
        content = {
            "schema": wire.SCHEMA,
            "by": by,
            "reason": str(request.get("reason") or ""),
            "attempt": attempts[-1] if attempts else None,
            "at": at,
        }
        if isinstance(request.get("then"), dict):
            content["then"] = request["then"]
        files.write_json(place.stop, content)
    return at


def _close(place: paths.RunDir, number: int) -> None:
    """If the supervisor could not, say here that the attempt ended."""
    if not (place.attempt(number) / exits.NAME).exists():
        exits.write(place.attempt(number), exits.fields(number, error=wire.SUPERVISOR_GONE))
