"""Puts the service together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.fleet import Asking, FleetWatch
from orchestrator.places import mirror_path
from orchestrator.serve.app import create_app
from orchestrator.serve.assets import Assets
from orchestrator.serve.copies import Copies
from orchestrator.serve.hub import Hub
from orchestrator.serve.logs import LogReader
from orchestrator.serve.parts import Parts, fleet_health
from orchestrator.serve.relay import Relay
from orchestrator.serve.running import Running
from orchestrator.serve.sdnotify import Notifier

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.clock import Clock
    from orchestrator.fleet import Board, Ways
    from orchestrator.mirror import Keeper
    from orchestrator.record import Record
    from orchestrator.serve.guard import Rules
    from orchestrator.serve.logs import OpenSite
    from orchestrator.serve.relay import OpenMessages


def make(
    record: Record,
    board: Board,
    clock: Clock,
    ways: Ways,
    open_site: OpenSite,
    rules: Rules,
    *,
    acting: bool,
    open_messages: OpenMessages,
    mirror: Keeper | None,
    root_path: str,
    ready: Callable[[], None],
) -> Running:
    """Return the service, not yet begun; `ready` is called when it serves."""
    relay = Relay(board, open_messages)
    fleet = FleetWatch(record, board, clock, ways, acting=acting, sink=relay, mirror=mirror, begins_anew=True)
    asking = Asking(record, clock, open_site)
    fleet.each_turn.append(lambda: asking.tell(relay))
    parts = Parts(
        fleet=fleet,
        record=record,
        clock=clock,
        hub=Hub(board, clock, lambda: fleet_health(fleet, clock), acting=acting),
        asking=asking,
        logs=LogReader(open_site, clock, Copies(mirror_path(record.path))),
        rules=rules,
        assets=Assets(),
        acting=acting,
    )
    return Running(
        app=create_app(parts),
        parts=parts,
        relay=relay,
        notifier=Notifier(),
        root_path=root_path,
        ready=ready,
    )
