"""Is a run alive? Proof by its lock and its processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.guest import lock, processes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.guest.paths import RunDir

MAX_PIDS = 1000
LAUNCH = "launch.json"


@dataclass(frozen=True)
class Liveness:
    """`pids` are the run's live processes without the supervisor; gone means no lock and no pids."""

    lock_held: bool
    pids: tuple[int, ...]
    supervisor: bool
    supervisor_pid: int | None

    @property
    def is_gone(self) -> bool:
        """The lock is free and no process of the run is left."""
        return not self.lock_held and not self.pids

    def fields(self, *, session: bool | None) -> dict[str, Any]:
        """As the `run` line has it; `session` None: tmux could not be asked."""
        return {
            "lock_held": self.lock_held,
            "pids": list(self.pids[:MAX_PIDS]),
            "supervisor": self.supervisor,
            "session": session,
        }


UNKNOWN = Liveness(lock_held=False, pids=(), supervisor=False, supervisor_pid=None)


def is_locked(run: RunDir, attempts: list[int]) -> bool:
    """Whether a trainer holds the run, by its lock or begun by hand."""
    return lock.is_held(run.lock) or is_by_hand(run, attempts)


def is_by_hand(run: RunDir, attempts: list[int]) -> bool:
    """Whether ranks that torchrun started by hand live: each holds its attempt's `launch.json`."""
    return any(lock.is_shared(run.attempt(number) / LAUNCH) for number in attempts[-2:])


def holders(run: RunDir) -> tuple[int, ...]:
    """Return who holds the run: the last way to find one that hides, or that was begun by hand."""
    launches = [run.attempt(number) / LAUNCH for number in run.attempts()[-2:]]
    by_hand = [pid for each in launches if each.exists() for pid in processes.holders(each, shared=True)]
    return tuple(sorted({*processes.holders(run.lock), *by_hand}))


def look(run: RunDir, attempts: list[int], table: Mapping[int, processes.Process] | None = None) -> Liveness:
    """Look at the run's newest attempt; the lock first, so that a fork in between is seen by one."""
    held = is_locked(run, attempts)
    known = processes.attempt_roots(run.attempt(attempts[-1])) if attempts else processes.Roots()
    found = processes.members(processes.scan() if table is None else table, run.path, known)
    return Liveness(held, found.pids, found.has_supervisor, known.supervisor)
