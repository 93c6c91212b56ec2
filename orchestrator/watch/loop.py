"""The loop around the turns: streams in, acts out, and the one broad `except` of the program."""

from __future__ import annotations

import logging
import os
import signal
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from queue import Empty, Queue
from typing import TYPE_CHECKING, Protocol

from orchestrator.act import actor
from orchestrator.errors import Exit, RecordError
from orchestrator.observe import (
    ContainerSeen,
    ContainerStream,
    Cursor,
    HostMute,
    HostReady,
    HostSaid,
    KernelSource,
    KernelStream,
    Lost,
    Observation,
    Received,
    Source,
)
from orchestrator.watch.acting import ActEnded, Acts
from orchestrator.watch.events import Level, Sink
from orchestrator.watch.farcalls import ActSite
from orchestrator.watch.kernelwait import KERNEL_OPEN_S, KERNEL_WAIT_S
from orchestrator.watch.runwatch import RunWatch
from orchestrator.watch.samplebuffer import SampleBuffer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from orchestrator.clock import Clock
    from orchestrator.playbook import Playbook
    from orchestrator.record import ActionRow, Record, RunRow

logger = logging.getLogger(__name__)

_TURN_S = 0.1
_TAKE_IN_S = 0.2  # a flood of one run's log must not keep the others from their turn
_MAX_WAITING = 256  # messages, each of which may hold 128 KiB of log
_AFTER_FAULT_S = 10.0
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


class Watcher:
    """Watches runs until each has ended, or until stopped."""

    def __init__(
        self, watched: Sequence[Watched], record: Record, sink: Sink, clock: Clock, *, acting: bool = True
    ) -> None:
        self._record = record
        self._sink = sink
        self._clock = clock
        self.inbox: Queue[Observation] = Queue(maxsize=_MAX_WAITING)
        self._ended_acts: Queue[ActEnded] = Queue()
        self._sites = {w.site.target_key: w.site for w in watched}
        self._samples = SampleBuffer(record)
        self.runs = [RunWatch(w.row, w.playbook, record, sink, self._samples, acting=acting) for w in watched]
        self._by_target: dict[str, list[RunWatch]] = {}
        for run in self.runs:
            self._by_target.setdefault(run.row.target_key, []).append(run)
        self._streams = [
            ContainerStream(site, self.inbox, partial(self._cursors, key), clock, {**actor(), "acts": acting})
            for key, site in self._sites.items()
        ]
        hosts = {w.host.host_key: w.host for w in watched if w.host is not None}
        self._by_host: dict[str, list[RunWatch]] = {key: [] for key in hosts}
        for each, run in zip(watched, self.runs, strict=True):
            if each.host is not None:
                self._by_host[each.host.host_key].append(run)
                run.kernel_wait.limit_s = KERNEL_OPEN_S
        self._kernels = [
            KernelStream(host, self.inbox, partial(self._kernel_since, key), clock)
            for key, host in hosts.items()
        ]
        self.acts = Acts(record, self._sites, clock, self._ended_acts.put)
        self._faulty_until: dict[int, float] = {}

    def run(self) -> Exit:
        """Watch until every run has ended; return the gravest exit code.

        Raises:
            RecordError: The record cannot be written; acting without a record is refused.
            KeyboardInterrupt: Ctrl-C, or a SIGTERM or SIGHUP that asks for the same.
        """
        with _signals_interrupt():
            self.adopt_intents()
            for thread in (*self._streams, *self._kernels):
                thread.start()
            try:
                while not all(run.ended is not None and not run.busy for run in self.runs):
                    self.turn()
                    self._sink.refresh()
            finally:
                self.close()
                self._samples.flush(self._clock.monotonic(), force=True)
        codes = [run.ended for run in self.runs if run.ended is not None]
        return max(codes, default=Exit.OK)

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

    def close(self) -> None:
        """Stop the streams. An act under way gets a moment; its intent is recorded, whatever comes of it."""
        threads: tuple[ContainerStream | KernelStream, ...] = (*self._streams, *self._kernels)
        for thread in threads:
            thread.stop()
        self.acts.join(_CLOSE_S)
        for site in self._sites.values():
            site.close()
        self.acts.join(_CLOSE_S)

    # -- observations

    def _cursors(self, target: str) -> Mapping[str, Cursor]:
        return {run.row.name: run.cursor() for run in self._by_target[target]}

    def _kernel_since(self, host: str) -> datetime | None:
        known = [run.kernel_since for run in self._by_host[host]]
        begins = [at for at in known if at is not None]
        return min(begins) if begins and len(begins) == len(known) else None

    def _take_in(self) -> None:
        begin = self._clock.monotonic()
        wait_s = _TURN_S if self._ended_acts.empty() else 0.0
        try:
            observation = self.inbox.get(timeout=wait_s)
            while True:
                self._apply(observation)
                if self._clock.monotonic() - begin > _TURN_S + _TAKE_IN_S:
                    return
                observation = self.inbox.get_nowait()
        except Empty:
            return

    def _apply(self, observation: Observation) -> None:
        now = self._clock.now()
        if isinstance(observation, HostSaid | HostMute | HostReady):
            self._apply_host(observation, now)
            return
        for run in self._by_target[observation.target]:
            match observation:
                case Received(message=message):
                    if message.get("run") in (None, run.row.name):
                        with self._guarded(run, "what the guest sent cannot be understood"):
                            run.apply(message, now)
                    if message["type"] == "hello":
                        run.container("running")
                case Lost(error=error, retry_in_s=retry_in_s):
                    run.lost(error.code, str(error), now)
                    logger.info(
                        "stream of %s lost, next try in %.1f s: %s", observation.target, retry_in_s, error
                    )
                case ContainerSeen(state=state):
                    run.container(state)

    def _apply_host(self, observation: HostSaid | HostMute | HostReady, now: datetime) -> None:
        runs = self._by_host[observation.target]
        if isinstance(observation, HostMute):
            runs[0].host_teller.mute(observation.target, observation.reason, now)
        for run in runs:
            if isinstance(observation, HostMute):
                run.kernel_wait.limit_s = 0.0
                continue
            if isinstance(observation, HostReady):
                run.kernel_wait.limit_s = KERNEL_WAIT_S if observation.is_ready else KERNEL_OPEN_S
                continue
            with self._guarded(run, "what the kernel said cannot be understood", is_deafening=False):
                run.host(observation.event, now)

    def _turn_run(self, run: RunWatch) -> None:
        with self._guarded(run, "a turn failed", is_deafening=False):
            now = self._clock.now()
            if not run.needs_turn(now):
                return
            decision = run.turn(now)
            if run.wants_stacks:
                self.acts.look_into(run)
            elif run.awaits_stacks:
                return
            elif decision is not None and self._clock.monotonic() >= self._faulty_until.get(run.row.id, 0.0):
                self.acts.consider(run, decision)

    @contextmanager
    def _guarded(self, run: RunWatch, what: str, *, is_deafening: bool = True) -> Iterator[None]:
        """One run's fault must not blind the others; that run does not act for a while, and it is told."""
        try:
            yield
        except (RecordError, OSError):  # of the record, or of our own output: there is no going on
            raise
        except Exception as error:
            now, ticks = self._clock.now(), self._clock.monotonic()
            if is_deafening:
                run.deafen(f"{what}: {error!r}", now)
            if ticks < self._faulty_until.get(run.row.id, 0.0):
                return
            # What a container sends is its own doing; a turn that fails is ours, and wants its traceback.
            logger.log(
                logging.INFO if is_deafening else logging.ERROR, "%s: %s", run.row.name, what, exc_info=True
            )
            run.teller.emit("fault", now, f"{what}: {error!r}", level=Level.BAD)
            self._faulty_until[run.row.id] = ticks + _AFTER_FAULT_S

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
