"""Server-sent events: the fleet whole, then what changes, at most twice a second for each reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.serve.hub import Place

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from orchestrator.serve.hub import Hub

HEARTBEAT_S = 10.0
RETRY_MS = 2_000
MAX_READERS = 200


async def events(hub: Hub, last_event_id: str | None) -> AsyncGenerator[bytes, None]:
    """Yield events until the reader leaves or the service ends.

    Whoever comes back with the last event's id gets what changed since; else the whole fleet comes first.
    """
    hub.num_readers += 1
    try:
        hub.refresh()
        yield f"retry: {RETRY_MS}\n\n".encode()
        place = hub.place_of(last_event_id)
        if place is None:
            place = hub.place
            yield _event("fleet", hub.event_id(place), hub.whole())
        while not hub.is_closed:
            if not await hub.wait(place, HEARTBEAT_S):
                yield hub.ping()  # an event, not a comment: a page must tell a silent server from a lost one
                continue
            before, place = place, hub.place
            if piece := _since(hub, before, place):
                yield piece
    finally:
        hub.num_readers -= 1


def _since(hub: Hub, before: Place, place: Place) -> bytes:
    """Return all that is new, in one piece; each event's id says what a reader has seen with it."""
    pieces = []
    if place.version != before.version:
        event_id = hub.event_id(Place(place.version, before.told))
        pieces.append(_event("runs", event_id, hub.changes(before.version)))
    for seq, body in hub.told_after(before.told):
        pieces.append(_event("told", hub.event_id(Place(place.version, seq)), body))
    return b"".join(pieces)


def _event(kind: str, event_id: str, body: bytes) -> bytes:
    return b"event: %s\nid: %s\ndata: %s\n\n" % (kind.encode(), event_id.encode(), body)
