"""The host's kernel log, asked for once: for a command that does not go on watching."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from orchestrator.classify.kernel import KernelReader
from orchestrator.errors import BlindError
from orchestrator.observe.hostways import Dmesg, Journal, Way, judge

if TYPE_CHECKING:
    from datetime import datetime

    from orchestrator.classify.kernel import KernelEvent

_FOLLOW = frozenset({"-f", "--no-tail", "--follow"})
_READ = (0, 1)  # newer journals end with 1 where nothing was found
TIMEOUT_S = 10.0


class Answer(Protocol):
    """How a command ended."""

    @property
    def exit_code(self) -> int | None:
        """None: not known."""
        ...

    @property
    def stdout(self) -> bytes:
        """What it printed."""
        ...

    @property
    def stderr(self) -> bytes:
        """What it complained of."""
        ...


class HostAsked(Protocol):
    """How to run something on a host; `site.Site` is one."""

    @property
    def becomes(self) -> bool:
        """Whether root there is another user than the one who logs in."""
        ...

    def ask_host(self, argv: tuple[str, ...], *, is_root: bool, timeout_s: float) -> Answer:
        """Run a command on the host, as root or as the user who logs in."""
        ...


def kernel_events(host: HostAsked, since: datetime) -> tuple[KernelEvent, ...]:
    """Return what the host's kernel said since then, by the host's clock; empty if it cannot be read."""
    for is_root in (True, False) if host.becomes else (True,):
        for way in (Journal(is_filtered=True), Dmesg()):
            events = _ask(host, way, since, is_root=is_root)
            if events is not None:
                return events
    return ()


def _ask(host: HostAsked, way: Way, since: datetime, *, is_root: bool) -> tuple[KernelEvent, ...] | None:
    argv = tuple(word for word in way.argv(since) if word not in _FOLLOW)
    try:
        answer = host.ask_host(argv, is_root=is_root, timeout_s=TIMEOUT_S)
    except BlindError:
        return None
    if answer.exit_code not in _READ or judge(answer.stderr.decode("utf-8", "replace")) is not None:
        return None
    reader = KernelReader()
    lines = (way.read(line) for line in answer.stdout.splitlines())
    events = (reader.read(line) for line in lines if line is not None)
    return tuple(event for event in events if event is not None)
