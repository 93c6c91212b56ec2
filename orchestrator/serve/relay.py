"""The sink of the service's watch: what it forwards to may be another one after a reload."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Protocol

from orchestrator.watch.events import Sink

if TYPE_CHECKING:
    from orchestrator.fleet import FleetWatch
    from orchestrator.notify import NotifySink
    from orchestrator.watch.events import WatchEvent

SWAP_S = 10.0


class OpenMessages(Protocol):
    """Makes what sends messages, as they are set now, and shows all in `view`; None if nobody is told."""

    def __call__(self, view: Sink) -> AbstractContextManager[NotifySink | None]:
        """Return it.

        Raises:
            ConfigError: The settings are wrong, or others may read them.
        """
        ...


class Relay:
    """Forwards to the board, by way of who is told, if anybody is."""

    def __init__(self, board: Sink, open_messages: OpenMessages) -> None:
        self._board = board
        self._open = open_messages
        self._to: Sink = board
        self._stack = ExitStack()

    def emit(self, event: WatchEvent) -> None:
        """Forward an event."""
        self._to.emit(event)

    def refresh(self) -> None:
        """Forward the time's passing."""
        self._to.refresh()

    def begin(self, fleet: FleetWatch) -> None:
        """Use the settings of messages; called before the watch starts.

        Raises:
            ConfigError: They are wrong.
        """
        self._to, self._stack = self._made(fleet)

    def reload(self, fleet: FleetWatch) -> None:
        """Use the settings as they are now; what was to be sent by the old ones still is, meanwhile.

        Raises:
            ConfigError: They are wrong; the old ones go on.
        """
        to, stack = self._made(fleet)
        before = self._stack

        def swap() -> None:
            self._to, self._stack = to, stack

        if fleet.is_running:
            fleet.ask(swap).result(SWAP_S)
        else:
            swap()
        threading.Thread(target=before.close, name="old messages", daemon=True).start()

    def close(self) -> None:
        """Send what waits; called after the watch ended."""
        self._to = self._board
        self._stack.close()

    def _made(self, fleet: FleetWatch) -> tuple[Sink, ExitStack]:
        stack = ExitStack()
        sink = stack.enter_context(self._open(self._board))
        if sink is None:
            return self._board, stack
        sink.attach(fleet)
        return sink, stack
