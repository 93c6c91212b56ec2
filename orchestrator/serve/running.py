"""The service as a process: it starts, reloads, tells systemd that it lives, and ends in order."""

from __future__ import annotations

import asyncio
import logging
import signal
from concurrent.futures import TimeoutError as Late
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import uvicorn

from orchestrator.errors import Exit, OrchestratorError, RecordGone
from orchestrator.fleet.health import TURN_LIMIT_S
from orchestrator.serve.connections import BACKLOG, Connection
from orchestrator.watch.events import Level, WatchEvent

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from starlette.types import ASGIApp

    from orchestrator.serve.parts import Parts
    from orchestrator.serve.relay import Relay
    from orchestrator.serve.sdnotify import Notifier

logger = logging.getLogger(__name__)

STATUS_EVERY_S = 10.0
DRAIN_S = 5.0
ASKED_S = 40.0  # with the rest within the unit's TimeoutStopSec


@dataclass(frozen=True, kw_only=True)
class Running:
    """What runs: the application on its socket, the watch behind it, and who is told of both."""

    app: ASGIApp
    parts: Parts
    relay: Relay
    notifier: Notifier
    ready: Callable[[], None]
    root_path: str = ""  # a proxy in front takes it away

    def run(self, listener: socket.socket) -> Exit:
        """Serve until a signal ends it.

        Raises:
            RecordError: The record cannot be read.
            ConfigError: The settings of messages are wrong.
        """
        fleet = self.parts.fleet
        self.relay.begin(fleet)
        try:
            fleet.start()
            return asyncio.run(self._serve(listener))
        finally:
            self.notifier.stopping()
            fleet.stop()
            self._finish_asked()
            self.relay.close()
            self.parts.logs.close()

    def _finish_asked(self) -> None:
        asking = self.parts.asking
        if names := asking.under_way:
            logger.warning("ends once what was asked is done: %s", ", ".join(names))
        if names := asking.join(ASKED_S):
            logger.error("ended while something asked was under way: %s", ", ".join(names))
        asking.tell(self.relay)

    async def _serve(self, listener: socket.socket) -> Exit:
        config = uvicorn.Config(
            self.app,
            http=Connection,
            backlog=BACKLOG,
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            root_path=self.root_path,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=int(DRAIN_S),
        )
        server = _Server(config, self._is_ready)
        loop, endings = asyncio.get_running_loop(), []

        def end(number: int) -> None:
            endings.append(number)
            self.notifier.stopping()
            self.parts.hub.close()
            server.should_exit = True

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end, number)
        asked = asyncio.Event()
        loop.add_signal_handler(signal.SIGHUP, asked.set)
        tasks = [asyncio.ensure_future(self.reload_as(asked)), asyncio.ensure_future(self._tell_alive())]
        try:
            await server.serve(sockets=[listener])
        finally:
            for task in tasks:
                task.cancel()
        return Exit.INTERRUPTED if signal.SIGINT in endings else Exit.OK

    def _is_ready(self) -> None:
        self.notifier.ready(self._status())
        self.ready()

    async def reload_as(self, asked: asyncio.Event) -> None:
        """Reload whenever that is asked, one after the other: many asks meanwhile are one."""
        while True:
            await asked.wait()
            asked.clear()
            await self._reload()

    async def _reload(self) -> None:
        """Read playbooks and settings of messages anew; what is wrong is told, and the old go on."""
        self.notifier.reloading()
        fleet = self.parts.fleet
        fleet.reload()
        problem: Exception | None = None
        try:
            await asyncio.to_thread(self.relay.reload, fleet)
        except (OrchestratorError, Late) as error:
            problem = error
        text, level = "reloaded: playbooks and messages", Level.INFO
        if problem is not None:
            text, level = f"reloaded the playbooks, but not the messages: {problem}", Level.WARNING
            logger.error("%s", text)
        now = self.parts.clock.now()
        event = WatchEvent(kind="reload", at=now, run="-", target="-", attempt=None, text=text, level=level)
        fleet.board.emit(event)
        self.notifier.ready(self._status())

    async def _tell_alive(self) -> None:
        """Tell systemd that the watch goes on, while it does: a service that only serves is no use."""
        every_s = min(STATUS_EVERY_S, (self.notifier.watchdog_s or STATUS_EVERY_S * 3) / 3)
        while self.notifier.is_on:
            await asyncio.sleep(every_s)
            if self._turns():
                self.notifier.alive(self._status())
            else:
                self.notifier.status(self._status())

    def _turns(self) -> bool:
        fleet = self.parts.fleet
        if isinstance(fleet.fault, RecordGone) and fleet.is_running:
            return True  # started anew it would begin a record that knows of no run, and be well
        if fleet.fault is not None or fleet.turned_at is None or self.parts.hub.fault is not None:
            return False
        return self.parts.clock.monotonic() - fleet.turned_at <= TURN_LIMIT_S

    def _status(self) -> str:
        found = self.parts.health()
        count = len(self.parts.fleet.board.fleet.cards)
        runs = "1 run" if count == 1 else f"{count} runs"
        return f"{runs}; " + ("all is well" if found.is_well else found.why[0])


class _Server(uvicorn.Server):
    """uvicorn's, which says when it is ready and leaves the signals to us."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
