"""What the service is made of, as its routes get it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.errors import NotFound
from orchestrator.fleet.health import Health, health

if TYPE_CHECKING:
    from orchestrator.clock import Clock
    from orchestrator.fleet import Asking, FleetWatch, RunCard
    from orchestrator.record import Record, RunRow
    from orchestrator.serve.assets import Assets
    from orchestrator.serve.guard import Rules
    from orchestrator.serve.hub import Hub
    from orchestrator.serve.logs import LogReader


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The watch, the record and what stands between them and a browser."""

    fleet: FleetWatch
    record: Record
    clock: Clock
    hub: Hub
    asking: Asking
    logs: LogReader
    rules: Rules
    assets: Assets
    acting: bool

    def row(self, run_id: int) -> RunRow:
        """Return a run's row.

        Raises:
            NotFound: There is no such run, or it was removed.
        """
        row = self.fleet.row(run_id)
        if row is None:
            raise NotFound(f"run {run_id}: no such run in the record", hint="the fleet's page lists them")
        return row

    def card(self, run_id: int) -> RunCard | None:
        """Return a run's card."""
        return self.fleet.board.fleet.card(run_id)

    def log_size(self, row: RunRow, attempt: int) -> int:
        """Return how much of an attempt's log was seen here."""
        return max(self.record.cursor(row.id, attempt).log_offset, self.logs.size_here(row, attempt))

    def health(self) -> Health:
        """Return how the watch and what tells of it do now."""
        found = fleet_health(self.fleet, self.clock)
        if self.hub.fault is None:
            return found
        return Health((f"the stream of the pages ended: {self.hub.fault}", *found.why))


def fleet_health(fleet: FleetWatch, clock: Clock) -> Health:
    """Return how a fleet's watch does now."""
    turned_at = fleet.turned_at
    turned_s_ago = clock.monotonic() - turned_at if turned_at is not None else None
    return health(
        fleet.board.fleet, clock.now(), acting=fleet.is_acting, fault=fleet.fault, turned_s_ago=turned_s_ago
    )
