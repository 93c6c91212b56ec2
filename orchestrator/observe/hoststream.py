"""One thread per host: follows its kernel log over the shared connection, and says when it may not."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from orchestrator.classify.kernel import KernelEvent, KernelReader
from orchestrator.errors import BlindError, GuestError
from orchestrator.observe.feeder import Feeder
from orchestrator.observe.hostways import Dmesg, Journal, Verdict, Way, judge

if TYPE_CHECKING:
    from collections.abc import Callable
    from queue import Queue

    from orchestrator.clock import Clock
    from orchestrator.observe.stream import Observation

READ_S = 0.3
READY_AFTER = 6  # reads in a row that brought nothing: a tool on a busy host is slow to begin
BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
STEADY_S = 30.0
AGAIN_S = 600.0  # a host that does not let us read it may be told to, some day
START_WAIT_S = 10.0  # for the first word of when an attempt began
BEFORE_S = 3600.0  # where nobody knows it
NOT_FOUND = 127


@dataclass(frozen=True)
class HostSaid:
    """A line of the host's kernel that matters; `target` is the host's key."""

    target: str
    event: KernelEvent


@dataclass(frozen=True)
class HostReady:
    """All that the kernel had said has come, and what it says from now on will; or that is no longer so."""

    target: str
    is_ready: bool


@dataclass(frozen=True)
class HostMute:
    """The host's kernel log cannot be read, and why; told once."""

    target: str
    reason: str


class HostStreamLike(Protocol):
    """A command that keeps running on the host."""

    @property
    def exit_code(self) -> int | None:
        """The exit code, once known."""
        ...

    def read_line(self, timeout_s: float) -> bytes | None:
        """Return the next line, None if none came in time, `b""` at the end."""
        ...

    def stderr_tail(self) -> str:
        """Return the last lines of stderr."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class KernelSource(Protocol):
    """How to run something on a host; `site.Site` is one."""

    @property
    def host_key(self) -> str:
        """The host's name; containers of one host share it."""
        ...

    @property
    def becomes(self) -> bool:
        """Whether root there is another user than the one who logs in."""
        ...

    def open_host(self, argv: tuple[str, ...], *, is_root: bool) -> HostStreamLike:
        """Start a command on the host, as root or as the user who logs in."""
        ...


class KernelStream(Feeder["Observation"]):
    """Feeds `out` with what the host's kernel says, until stopped.

    `since` tells from when on lines are wanted, by the host's clock; None while that is not known.
    """

    def __init__(
        self,
        source: KernelSource,
        out: Queue[Observation],
        since: Callable[[], datetime | None],
        clock: Clock,
    ) -> None:
        super().__init__(f"kernel {source.host_key}", out, clock, BACKOFF_S)
        self._source = source
        self._since = since
        self._reader = KernelReader()
        self._is_told = False
        self._is_ready = False

    def run(self) -> None:
        """Follow until stopped."""
        since = self._first_time()
        users = (True, False) if self._source.becomes else (True,)
        while not self._ending.is_set():
            reason = self._try_ways(since, users)
            if reason is not None and not self._is_told:
                self._is_told = True
                self._put(HostMute(self._source.host_key, reason))
            self._ending.wait(AGAIN_S)

    def _first_time(self) -> datetime:
        """Return from when on lines are wanted, given a moment to find out."""
        give_up_at = self._clock.monotonic() + START_WAIT_S
        while not self._ending.is_set() and self._clock.monotonic() < give_up_at:
            found = self._since()
            if found is not None:
                return found
            self._ending.wait(0.2)
        return self._clock.now() - timedelta(seconds=BEFORE_S)

    def _try_ways(self, since: datetime, users: tuple[bool, ...]) -> str | None:
        """Follow by the first way that works; return why none does, None once stopped."""
        reasons: list[str] = []
        for makes in _WAYS:
            for is_root in users:
                for make in makes:
                    way = make()
                    verdict = self._stay(way, since, is_root=is_root)
                    if verdict is None:
                        return None
                    reasons.append(f"{way.name}: {_WORDS[verdict]}")
                    if verdict is not Verdict.OLD:
                        break
        return "; ".join(dict.fromkeys(reasons))

    def _stay(self, way: Way, since: datetime, *, is_root: bool) -> Verdict | None:
        """Follow by one way, through every cut; return why it does not work here, None once stopped."""
        while not self._ending.is_set():
            opened = self._clock.monotonic()
            try:
                verdict = self._follow(way, since, is_root=is_root)
            except BlindError:  # the stream of the container tells of the same cut
                verdict = None
            self._tell_ready(is_ready=False)
            if verdict is not None:
                return verdict
            if self._clock.monotonic() - opened >= STEADY_S:
                self._failures = 0
            self._ending.wait(self._next_wait_s())
        return None

    def _follow(self, way: Way, since: datetime, *, is_root: bool) -> Verdict | None:
        """Read until the stream ends; return why it never began, if the tool says so."""
        try:
            stream = self._source.open_host(way.argv(since), is_root=is_root)
        except GuestError:
            return Verdict.MISSING
        silences = 0
        try:
            while not self._ending.is_set():
                line = stream.read_line(READ_S)
                said = stream.stderr_tail()
                if line == b"" or said:
                    verdict = judge(said) or (Verdict.MISSING if stream.exit_code == NOT_FOUND else None)
                    if verdict is not None or line == b"":
                        return verdict
                silences = silences + 1 if line is None else 0
                if silences >= READY_AFTER:
                    self._tell_ready(is_ready=True)  # the backlog has come
                found = way.read(line) if line else None
                event = self._reader.read(found) if found is not None else None
                if event is not None:
                    self._put(HostSaid(self._source.host_key, event))
        finally:
            stream.close()
        return None

    def _tell_ready(self, *, is_ready: bool) -> None:
        if is_ready is not self._is_ready:
            self._is_ready = is_ready
            self._put(HostReady(self._source.host_key, is_ready))


# Of each tool, what to try; the next only where the tool is too old for the one before.
_WAYS: tuple[tuple[Callable[[], Way], ...], ...] = (
    (lambda: Journal(is_filtered=True), lambda: Journal(is_filtered=False)),
    (Dmesg,),
)
_WORDS = {
    Verdict.DENIED: "not allowed",
    Verdict.MISSING: "no kernel log there",
    Verdict.OLD: "too old",
}
