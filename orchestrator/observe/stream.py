"""One thread per container: keeps the guest's stream open, reconnects, and says when it is blind."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from orchestrator.errors import BlindError, GuestRefused, OrchestratorError
from orchestrator.observe.feeder import Feeder
from orchestrator.observe.hoststream import HostMute, HostReady, HostSaid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from queue import Queue

    from orchestrator.clock import Clock
    from orchestrator.wire import Message

PING_EVERY_S = 5.0
ASK_HOST_AFTER_S = 7.0
SILENT_LIMIT_S = 25.0
ASK_HOST_AGAIN_S = 10.0  # while it says that the container does not simply run
SPEAKS_S = 1.0
STEADY_S = 5.0  # a stream that lived so long was a good one
BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0)


@dataclass(frozen=True)
class Received:
    """A message of the guest."""

    target: str
    message: Message


@dataclass(frozen=True)
class Lost:
    """The stream broke or could not be opened."""

    target: str
    error: OrchestratorError
    retry_in_s: float


@dataclass(frozen=True)
class ContainerSeen:
    """What the host says of the container; None if it could not say."""

    target: str
    state: str | None


Observation = Received | Lost | ContainerSeen | HostSaid | HostMute | HostReady


@dataclass(frozen=True)
class Cursor:
    """How much of an attempt was seen already."""

    attempt: int | None
    log_offset: int
    metrics_offset: int


class GuestStream(Protocol):
    """The kept channel to `guest watch`."""

    @property
    def is_ended(self) -> bool:
        """Whether the guest has ended of its own accord."""
        ...

    def send(self, kind: str, fields: Mapping[str, object]) -> None:
        """Send one line."""
        ...

    def read(self, timeout_s: float) -> Message | None:
        """Return the next message, or None."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Source(Protocol):
    """How to reach one container; `site` implements it, tests may fake it."""

    @property
    def target_key(self) -> str:
        """The target's name in the record."""
        ...

    @property
    def state_dir(self) -> str:
        """The state folder in the container."""
        ...

    def open_watch(self, request: Mapping[str, object]) -> GuestStream:
        """Open the stream."""
        ...

    def container_state(self) -> str | None:
        """What the host says of the container."""
        ...

    def drop(self) -> None:
        """Forget the connection, so that the next opening makes a new one."""
        ...


class ContainerStream(Feeder["Observation"]):
    """Feeds `out` with observations of one container until stopped."""

    def __init__(
        self,
        source: Source,
        out: Queue[Observation],
        cursors: Callable[[], Mapping[str, Cursor]],
        clock: Clock,
        watcher: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(f"watch {source.target_key}", out, clock, BACKOFF_S)
        self._watcher = dict(watcher or {}) or None  # who we are, for other watchers to be told
        self._source = source
        self._cursors = cursors
        self._state: str | None = None  # of the container, as the host told it last
        self._reopening = threading.Event()

    def reopen(self) -> None:
        """Open the stream anew where it is open, because another set of runs is wanted; nothing is lost."""
        self._reopening.set()

    def run(self) -> None:
        """Stream until stopped."""
        while not self._ending.is_set():
            try:
                self._stream_once()
            except (BlindError, GuestRefused) as error:
                if self._ending.is_set():
                    return
                self._report_loss(error)

    def _request(self) -> dict[str, object]:
        runs = {
            run: {"attempt": c.attempt, "log_offset": c.log_offset, "metrics_offset": c.metrics_offset}
            for run, c in self._cursors().items()
        }
        request: dict[str, object] = {"state_dir": self._source.state_dir, "runs": runs}
        return {**request, "gpus": True, "interval_s": 0.2, "watcher": self._watcher}

    def _stream_once(self) -> None:
        self._reopening.clear()
        stream = self._source.open_watch(self._request())
        try:
            self._pump(stream)
        finally:
            stream.close()

    def _pump(self, stream: GuestStream) -> None:
        opened = heard = pinged = self._clock.monotonic()
        asked_host: float | None = None
        self._state = None
        while not (self._ending.is_set() or self._reopening.is_set()):
            message = stream.read(0.5)
            now = self._clock.monotonic()
            if message is not None:
                if now - opened >= STEADY_S:
                    self._failures = 0
                self._put(Received(self._source.target_key, message))
                self._check_goes_on(message)
                heard = self._clock.monotonic()  # the reader of `out` may have kept us waiting
            elif stream.is_ended:
                raise BlindError(f"{self._source.target_key}: the guest's stream ended")
            if now - pinged >= PING_EVERY_S:
                stream.send("ping", {})
                pinged = now
            if self._must_ask_host(now - heard, None if asked_host is None else now - asked_host):
                self._tell_container()
                asked_host = self._clock.monotonic()
            if now - heard >= SILENT_LIMIT_S:
                raise BlindError(f"{self._source.target_key}: silent for {now - heard:.0f} s")

    def _check_goes_on(self, message: Message) -> None:
        if message["type"] == "bye":
            raise BlindError(f"{self._source.target_key}: the guest ended: {message.get('reason')}")

    def _must_ask_host(self, silent_s: float, asked_s_ago: float | None) -> bool:
        """Only the host can tell a frozen container, whose attach blocks, from a dead one."""
        if asked_s_ago is None:
            return silent_s >= ASK_HOST_AFTER_S
        if self._state not in (None, "running") and asked_s_ago >= ASK_HOST_AGAIN_S:
            return True
        # What speaks is neither frozen nor stopped any more; a lock may well last.
        return self._state in ("frozen", "stopped") and silent_s < SPEAKS_S <= asked_s_ago

    def _tell_container(self) -> None:
        seen = self._source.container_state()
        self._state = seen.partition(":")[0] if seen is not None else None
        self._put(ContainerSeen(self._source.target_key, seen))

    def _report_loss(self, error: OrchestratorError) -> None:
        delay = self._next_wait_s()
        self._put(Lost(self._source.target_key, error, delay))
        self._source.drop()
        if not self._ending.is_set():
            self._tell_container()
        self._ending.wait(delay)
