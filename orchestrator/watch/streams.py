"""The streams of one watch: one a container, one a host's kernel log, shared by the runs that need them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from orchestrator.act import actor
from orchestrator.observe import ContainerStream, KernelSource, KernelStream, Observation, Source
from orchestrator.watch.farcalls import ActSite

if TYPE_CHECKING:
    from queue import Queue

    from orchestrator.clock import Clock
    from orchestrator.watch.dispatch import Dispatch
    from orchestrator.watch.runwatch import RunWatch

T = TypeVar("T", ContainerStream, KernelStream)


class WatchSite(Source, ActSite, Protocol):
    """A place that is watched and acted at; `site.Site` is one, tests may bring their own."""

    def close(self) -> None:
        """Close the connection; whoever is blocked in it gets a BlindError."""
        ...


class Streams:
    """Threads that fill the inbox, and the sites that they read; they run from `start` to `stop`."""

    def __init__(self, inbox: Queue[Observation], dispatch: Dispatch, clock: Clock, *, acting: bool) -> None:
        self.sites: dict[str, WatchSite] = {}  # by target
        self._inbox = inbox
        self._dispatch = dispatch
        self._clock = clock
        self._acting = acting
        self._containers: dict[str, ContainerStream] = {}  # by target
        self._kernels: dict[str, KernelStream] = {}  # by host
        self._hosts: dict[RunWatch, KernelSource] = {}
        self._is_started = False

    def start(self) -> None:
        """Begin to read."""
        self._is_started = True
        for thread in self._threads():
            thread.start()

    def stop(self) -> None:
        """End the threads; the sites stay open, for acts under way."""
        for thread in self._threads():
            thread.stop()

    def close(self) -> None:
        """Close the sites."""
        for site in self.sites.values():
            site.close()

    def add(self, run: RunWatch, site: WatchSite, host: KernelSource | None) -> None:
        """Read what comes of a run; one at a known target shares its site."""
        site = self.sites.setdefault(site.target_key, site)
        self._dispatch.add(run, host.host_key if host is not None else None)
        if site.target_key in self._containers:
            self._containers[site.target_key].reopen()
        else:
            self._begin(self._containers, site.target_key, self._stream_of(site))
        if host is not None:
            self._hosts[run] = host
            self._follow_kernel(host)

    def remove(self, run: RunWatch) -> None:
        """Read no more of it. Its container's site stays open as long as another run needs it."""
        key, host = run.row.target_key, self._hosts.pop(run, None)
        self._dispatch.remove(run)
        if key in self._dispatch.by_target:
            self._containers[key].reopen()
        else:
            self._containers.pop(key).stop()
            self.sites.pop(key).close()
        if host is not None:
            # Its stream may have gone over the site that was closed; another run's takes its place.
            self._kernels.pop(host.host_key).stop()
            for other in self._hosts.values():
                if other.host_key == host.host_key:
                    self._follow_kernel(other)

    def _follow_kernel(self, host: KernelSource) -> None:
        if host.host_key not in self._kernels:
            since = partial(self._dispatch.kernel_since, host.host_key)
            self._begin(self._kernels, host.host_key, KernelStream(host, self._inbox, since, self._clock))

    def _stream_of(self, site: WatchSite) -> ContainerStream:
        cursors = partial(self._dispatch.cursors, site.target_key)
        watcher = {**actor(), "acts": self._acting}
        return ContainerStream(site, self._inbox, cursors, self._clock, watcher)

    def _begin(self, threads: dict[str, T], key: str, thread: T) -> None:
        threads[key] = thread
        if self._is_started:
            thread.start()

    def _threads(self) -> tuple[ContainerStream | KernelStream, ...]:
        return (*self._containers.values(), *self._kernels.values())
