"""How a fleet gets what it needs of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from orchestrator.errors import PlaybookError
from orchestrator.observe import KernelSource
from orchestrator.watch.streams import WatchSite

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.playbook import Playbook
    from orchestrator.record import RunRow


class FleetSite(WatchSite, KernelSource, Protocol):
    """A place that is watched, with its host; `site.Site` is one."""


@dataclass(frozen=True, kw_only=True)
class Ways:
    """How a fleet gets what it needs of a run: the way there, its playbook, and which runs are meant.

    `playbook` raises PlaybookError; `shipped` then takes its place, and the run is only looked at.
    `takes_ended`: runs that have ended by the record are looked at as well, for the record may be behind.
    """

    site: Callable[[RunRow], FleetSite]
    playbook: Callable[[RunRow], Playbook]
    shipped: Callable[[], Playbook]
    wants: Callable[[RunRow], bool] = lambda _row: True
    takes_ended: bool = False

    def usable(self, row: RunRow) -> tuple[Playbook, str]:
        """Return a run's playbook and "", or the shipped one and why the run is only looked at by it."""
        try:
            return self.playbook(row), ""
        except PlaybookError as error:
            return self.shipped(), f"only looked at: {error.message}"
