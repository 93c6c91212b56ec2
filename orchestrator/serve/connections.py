"""Connections: so many at once, each of which asks in time.

Whoever can connect needs no token for it. Without an end to that a stranger takes every descriptor of the
process, and the watch can open neither a stream nor its record: it is blind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

MAX_CONNECTIONS = 300  # of the 1024 descriptors that a process has as a rule
ASK_S = 20.0  # for a request with its body
BACKLOG = 64  # so many are taken in at once, before the first is counted


class Connection(H11Protocol):
    """uvicorn's. One that asks nothing is closed: after a while, or when there are too many."""

    max_connections = MAX_CONNECTIONS
    ask_s = ASK_S

    def __init__(self, *args: Any, **named: Any) -> None:  # noqa: ANN401 - uvicorn's
        super().__init__(*args, **named)
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it in, or close what asks nothing in its place."""
        super().connection_made(transport)
        self._time()
        if len(self.connections) > self.max_connections:
            waiting = [each for each in self.connections if isinstance(each, Connection) and each.ends_at]
            min(waiting, key=lambda each: each.ends_at, default=self).close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take in a piece of a request."""
        super().data_received(data)
        self._time()

    @property
    def ends_at(self) -> float:
        """By when it is closed if it asks nothing, by the loop's clock; 0 while it is being answered."""
        timer = self._late or self.timeout_keep_alive_task
        return timer.when() if timer is not None else 0.0

    def close(self) -> None:
        """Close it at once."""
        self._stop()
        self.connections.discard(self)  # its loss is told in the next turn, and others come in this one
        self.transport.abort()

    def _time(self) -> None:
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop()
        elif self._late is None:
            self._late = self.loop.call_later(self.ask_s, self.close)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
