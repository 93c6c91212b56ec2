"""How long a death waits for what the host's kernel may say of it, which comes by another way. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.classify.hostside import may_know

if TYPE_CHECKING:
    from datetime import datetime

    from orchestrator.types.failure import Diagnosis

KERNEL_WAIT_S = 0.7  # for a line that is on its way
KERNEL_OPEN_S = 4.0  # for the log to be followed, at the beginning and after a cut


class KernelWait:
    """One run's; without a host whose log is followed nothing waits."""

    def __init__(self) -> None:
        self.limit_s = 0.0
        self._since: datetime | None = None

    @property
    def is_on(self) -> bool:
        """Whether a death is waiting."""
        return self._since is not None

    def holds(self, diagnosis: Diagnosis, now: datetime, *, is_new: bool) -> bool:
        """Whether the diagnosis must wait; `is_new`: nothing was said of this death yet."""
        if not (is_new and may_know(diagnosis)):
            self._since = None
            return False
        self._since = self._since or now
        return abs((now - self._since).total_seconds()) < self.limit_s
