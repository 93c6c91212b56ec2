"""The loop around the turns: streams in, acts out."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from queue import Empty, Queue
from typing import TYPE_CHECKING, Protocol, TypeVar

from orchestrator.act import actor
from orchestrator.errors import Exit
from orchestrator.mirror import RunKey
from orchestrator.observe import ContainerStream, KernelSource, KernelStream, Observation, Source
from orchestrator.watch.acting import ActEnded, Acts
from orchestrator.watch.dispatch import Dispatch
from orchestrator.watch.events import Level
from orchestrator.watch.farcalls import ActSite
from orchestrator.watch.faults import Faults
from orchestrator.watch.mirroring import tell_mirror
from orchestrator.watch.runwatch import RunWatch
from orchestrator.watch.samplebuffer import SampleBuffer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.clock import Clock
    from orchestrator.mirror import Keeper
    from orchestrator.playbook import Playbook
    from orchestrator.record import ActionRow, Record, RunRow
    from orchestrator.watch.events import Sink

T = TypeVar("T", ContainerStream, KernelStream)

_TURN_S = 0.1
_TAKE_IN_S = 0.2  # a flood of one run's log must not keep the others from their turn
_MAX_WAITING = 256  # messages, each of which may hold 128 KiB of log
_CLOSE_S = 1.0
_LONGEST_ACT_S = 600.0


class WatchSite(Source, ActSite, Protocol):
    """A place that is watched and acted at; `site.Site` is one, tests may bring their own."""

    def close(self) -> None:
        """Close the connection; whoever is blocked in it gets a BlindError."""
        ...


@dataclass(frozen=True)
class Watched:
    """A run to watch, how to reach it, and what to do about it."""

    row: RunRow
    site: WatchSite
    playbook: Playbook
    host: KernelSource | None = None  # whose kernel log is followed
    remark: str = ""  # why it is only looked at, also by a watch that acts


class Watcher:
    """Watches runs until each has ended, or until stopped."""

    def __init__(
        self,
        watched: Sequence[Watched],
        record: Record,
        sink: Sink,
        clock: Clock,
        *,
        acting: bool = True,
        mirror: Keeper | None = None,
    ) -> None:
        self._record = record
        self._sink = sink
        self._clock = clock
        self.inbox: Queue[Observation] = Queue(maxsize=_MAX_WAITING)
        self._ended_acts: Queue[ActEnded] = Queue()
        self._acting = acting
        self._sites: dict[str, WatchSite] = {}
        self._samples = SampleBuffer(record)
        self._mirror = mirror
        self.runs: list[RunWatch] = []
        self._faults = Faults(clock)
        self._dispatch = Dispatch(self._faults)
        self._streams: dict[str, ContainerStream] = {}  # by target
        self._kernels: dict[str, KernelStream] = {}  # by host
        self._hosts: dict[RunWatch, KernelSource] = {}
        self._is_started = False
        self.acts = Acts(record, self._sites, clock, self._ended_acts.put)
        for each in watched:
            self.add(each)

    def run(self) -> Exit:
        """Watch until every run has ended; return the gravest exit code.

        Raises:
            RecordError: The record cannot be written; acting without a record is refused.
            KeyboardInterrupt: Ctrl-C, or a SIGTERM or SIGHUP that asks for the same.
        """
        with _signals_interrupt(), self.started():
            while not all(run.is_over for run in self.runs):
                self.turn()
                self._sink.refresh()
        codes = [run.ended for run in self.runs if run.ended is not None]
        return max(codes, default=Exit.OK)

    @contextmanager
    def started(self) -> Iterator[None]:
        """Its streams run inside; what they brought is on record afterwards."""
        self.adopt_intents()
        self._is_started = True
        if self._mirror is not None:
            self._mirror.start()
        for thread in self._threads():
            thread.start()
        try:
            yield
        finally:
            self.close()
            self._samples.flush(self._clock.monotonic(), force=True)

    def add(self, watched: Watched) -> RunWatch:
        """Watch one more run, also while others are watched; a run at a known target shares its site."""
        site = self._sites.setdefault(watched.site.target_key, watched.site)
        acting = self._acting and not watched.remark
        row, mirror = watched.row, self._mirror
        if mirror is not None:
            mirror.add(RunKey.of(row))
        run = RunWatch(
            row, watched.playbook, self._record, self._sink, self._samples, acting=acting, mirror=mirror
        )
        self.runs.append(run)
        if watched.remark:
            run.teller.emit("gate", self._clock.now(), watched.remark, level=Level.WARNING)
        host = watched.host
        self._dispatch.add(run, host.host_key if host is not None else None)
        if site.target_key in self._streams:
            self._streams[site.target_key].reopen()
        else:
            self._start(self._streams, site.target_key, self._stream_of(site))
        if host is not None:
            self._hosts[run] = host
            self._follow_kernel(host)
        return run

    def remove(self, run: RunWatch) -> None:
        """Watch it no more. Its container's site stays open as long as another run needs it."""
        self.runs.remove(run)
        key, host = run.row.target_key, self._hosts.pop(run, None)
        self._dispatch.remove(run)
        if self._mirror is not None:
            self._mirror.remove(run.row.id)
        if key in self._dispatch.by_target:
            self._streams[key].reopen()
        else:
            self._streams.pop(key).stop()
            self._sites.pop(key).close()
        if host is not None:
            # Its stream may have gone over the site that was closed; another run's takes its place.
            self._kernels.pop(host.host_key).stop()
            for other in self._hosts.values():
                if other.host_key == host.host_key:
                    self._follow_kernel(other)

    def _follow_kernel(self, host: KernelSource) -> None:
        if host.host_key not in self._kernels:
            since = partial(self._dispatch.kernel_since, host.host_key)
            self._start(self._kernels, host.host_key, KernelStream(host, self.inbox, since, self._clock))

    def _stream_of(self, site: WatchSite) -> ContainerStream:
        cursors = partial(self._dispatch.cursors, site.target_key)
        watcher = {**actor(), "acts": self._acting}
        return ContainerStream(site, self.inbox, cursors, self._clock, watcher)

    def _start(self, threads: dict[str, T], key: str, thread: T) -> None:
        threads[key] = thread
        if self._is_started:
            thread.start()

    def _threads(self) -> tuple[ContainerStream | KernelStream, ...]:
        return (*self._streams.values(), *self._kernels.values())

    def turn(self) -> None:
        """Take in what has come, then let every run diagnose, decide and act.

        Raises:
            RecordError: The record cannot be written.
        """
        self._take_in()
        while not self._ended_acts.empty():
            self.acts.finish(self._ended_acts.get_nowait())
        for run in self.runs:
            self._turn_run(run)
        self._samples.flush(self._clock.monotonic())
        self._tell_mirror()

    def close(self) -> None:
        """Stop the streams. An act under way gets a moment; its intent is recorded, whatever comes of it."""
        for thread in self._threads():
            thread.stop()
        self.acts.join(_CLOSE_S)
        for site in self._sites.values():
            site.close()
        self.acts.join(_CLOSE_S)
        if self._mirror is not None:
            self._mirror.close()
            self._tell_mirror()

    def _tell_mirror(self) -> None:
        if self._mirror is not None:
            tell_mirror(self._mirror, self._sink, self._clock)

    def _take_in(self) -> None:
        begin = self._clock.monotonic()
        wait_s = _TURN_S if self._ended_acts.empty() else 0.0
        try:
            observation = self.inbox.get(timeout=wait_s)
            while True:
                self._dispatch.apply(observation, self._clock.now())
                if self._clock.monotonic() - begin > _TURN_S + _TAKE_IN_S:
                    return
                observation = self.inbox.get_nowait()
        except Empty:
            return

    def _turn_run(self, run: RunWatch) -> None:
        with self._faults.contained(run, "a turn failed", is_deafening=False):
            now = self._clock.now()
            if not run.needs_turn(now):
                return
            decision = run.turn(now)
            if run.wants_stacks:
                self.acts.look_into(run)
            elif run.awaits_stacks:
                return
            elif decision is not None and not self._faults.is_recent(run):
                self.acts.consider(run, decision)

    def adopt_intents(self) -> None:
        """A watcher was killed between intent and outcome: say so; the streams show what became of it."""
        now = self._clock.now()
        for run in self.runs:
            for action in self._record.open_intents(run.row.id):
                age_s = (now - action.intent_at).total_seconds()
                if age_s > _LONGEST_ACT_S or not _is_at_it(action):
                    self._record.outcome(action.id, "unknown: its watcher ended before the outcome", now)


def _is_at_it(action: ActionRow) -> bool:
    """Whether the process that intends it still lives: another watcher, or a person's own command."""
    pid = action.intent.get("pid")
    if not isinstance(pid, int) or pid == os.getpid() or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP end a watch as Ctrl-C does: in order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    wanted = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
