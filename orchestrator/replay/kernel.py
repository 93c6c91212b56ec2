"""What the host's kernel said about a container up to now, read once over the connection there is."""

from __future__ import annotations

from queue import Empty, Queue
from typing import TYPE_CHECKING

from orchestrator.observe import HostMute, HostReady, HostSaid, KernelSource, KernelStream, Observation
from orchestrator.observe.hostlog import HostLog

if TYPE_CHECKING:
    from datetime import datetime

    from orchestrator.clock import Clock
    from orchestrator.types.seen import HostLine

MOST_S = 15.0


def kernel_lines(
    source: KernelSource, ct: int, since: datetime, clock: Clock
) -> tuple[tuple[HostLine, ...], str | None]:
    """Return the lines since then that may be about the container, and why none can be read.

    Takes at most MOST_S seconds; `since` is by the host's clock.
    """
    heard: Queue[Observation] = Queue()
    stream = KernelStream(source, heard, lambda: since, clock)
    log, give_up_at = HostLog(ct), clock.monotonic() + MOST_S
    stream.start()
    try:
        while clock.monotonic() < give_up_at:
            try:
                said = heard.get(timeout=0.5)
            except Empty:
                continue
            if isinstance(said, HostMute):
                return (), said.reason
            if isinstance(said, HostReady) and said.is_ready:
                break
            if isinstance(said, HostSaid):
                log.add(said.event, None)
    finally:
        stream.stop()
    return log.lines(since, None), None
