"""Is a run alive? Proof by its lock and its processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.guest import lock, processes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.guest.paths import RunDir

MAX_PIDS = 1000


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


def look(run: RunDir, attempts: list[int], table: Mapping[int, processes.Process] | None = None) -> Liveness:
    """Look at the run's newest attempt; the lock first, so that a fork in between is seen by one."""
    held = lock.is_held(run.lock)
    known = processes.attempt_roots(run.attempt(attempts[-1])) if attempts else processes.Roots()
    found = processes.members(processes.scan() if table is None else table, run.path, known)
    return Liveness(held, found.pids, found.has_supervisor, known.supervisor)
