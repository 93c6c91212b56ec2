"""The loop around the turns: streams in, acts out."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, Queue
from typing import TYPE_CHECKING

from orchestrator.errors import Exit
from orchestrator.mirror import RunKey
from orchestrator.watch.acting import ActEnded, Acts
from orchestrator.watch.dispatch import Dispatch
from orchestrator.watch.events import Level
from orchestrator.watch.faults import Faults
from orchestrator.watch.mirroring import tell_mirror
from orchestrator.watch.runwatch import RunWatch
from orchestrator.watch.samplebuffer import SampleBuffer
from orchestrator.watch.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.clock import Clock
    from orchestrator.mirror import Keeper
    from orchestrator.observe import KernelSource, Observation
    from orchestrator.playbook import Playbook
    from orchestrator.record import ActionRow, Record, RunRow
    from orchestrator.watch.events import Sink
    from orchestrator.watch.streams import WatchSite

_TURN_S = 0.1
_TAKE_IN_S = 0.2  # a flood of one run's log must not keep the others from their turn
_MAX_WAITING = 256  # messages, each of which may hold 128 KiB of log
_CLOSE_S = 1.0
_LONGEST_ACT_S = 600.0


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
        self._samples = SampleBuffer(record)
        self._mirror = mirror
        self.runs: list[RunWatch] = []
        self._faults = Faults(clock)
        self._dispatch = Dispatch(self._faults)
        self._streams = Streams(self.inbox, self._dispatch, clock, acting=acting)
        self.acts = Acts(record, self._streams.sites, clock, self._ended_acts.put)
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
        if self._mirror is not None:
            self._mirror.start()
        self._streams.start()
        try:
            yield
        finally:
            self.close()
            self._samples.flush(self._clock.monotonic(), force=True)

    def add(self, watched: Watched) -> RunWatch:
        """Watch one more run, also while others are watched; a run at a known target shares its site."""
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
        self._streams.add(run, watched.site, watched.host)
        return run

    def remove(self, run: RunWatch) -> None:
        """Watch it no more. Its container's site stays open as long as another run needs it."""
        self.runs.remove(run)
        if self._mirror is not None:
            self._mirror.remove(run.row.id)
        self._streams.remove(run)

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
        self._streams.stop()
        self.acts.join(_CLOSE_S)
        self._streams.close()
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
