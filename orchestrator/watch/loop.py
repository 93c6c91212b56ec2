"""The loop around the turns: streams in, acts out, and the one broad `except` of the program."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from queue import Empty, Queue
from typing import TYPE_CHECKING

from orchestrator.act import Actor, Gates, closed_gates
from orchestrator.errors import (
    ActRefused,
    BlindError,
    ConfigError,
    Exit,
    GuestRefused,
    OrchestratorError,
    RunAlive,
)
from orchestrator.launch import RunSpec, spec_from_document
from orchestrator.observe import ContainerSeen, ContainerStream, Cursor, Lost, Observation, Received
from orchestrator.types import Decision, RunState
from orchestrator.watch.events import Level, Sink
from orchestrator.watch.runwatch import RunWatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.clock import Clock
    from orchestrator.playbook import Playbook
    from orchestrator.record import Record, RunRow
    from orchestrator.site import Site

logger = logging.getLogger(__name__)

_TURN_S = 0.1
_RETRY_GATE_S = 2.0
_MAX_DRAIN = 500


@dataclass(frozen=True)
class Watched:
    """A run to watch, how to reach it, and what to do about it."""

    row: RunRow
    site: Site
    playbook: Playbook


class Watcher:
    """Watches runs until each has ended, or until stopped."""

    def __init__(
        self, watched: Sequence[Watched], record: Record, sink: Sink, clock: Clock, *, acting: bool = True
    ) -> None:
        self._record = record
        self._sink = sink
        self._clock = clock
        self._actor = Actor(record, clock)
        self._queue: Queue[Observation] = Queue(maxsize=10_000)
        self._sites = {w.site.target_key: w.site for w in watched}
        self.runs = [RunWatch(w.row, w.playbook, record, sink, acting=acting) for w in watched]
        self._by_target: dict[str, list[RunWatch]] = {}
        for run in self.runs:
            self._by_target.setdefault(run.row.target_key, []).append(run)
        self._streams = [
            ContainerStream(site, self._queue, partial(self._cursors, key), clock)
            for key, site in self._sites.items()
        ]
        self._pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="act")
        self._not_before: dict[int, float] = {}

    def run(self) -> Exit:
        """Watch until every run has ended; return the gravest exit code.

        Raises:
            RecordError: The record cannot be written; acting without a record is refused.
        """
        self._adopt_intents()
        for stream in self._streams:
            stream.start()
        try:
            while not all(run.ended is not None and not run.busy for run in self.runs):
                self._take_in()
                for run in self.runs:
                    self._turn(run)
                    run.save_cursor(self._clock.now())
                self._sink.refresh()
        finally:
            for run in self.runs:
                run.save_cursor(self._clock.now(), force=True)
            self.close()
        codes = [run.ended for run in self.runs if run.ended is not None]
        return max(codes, default=Exit.OK, key=lambda code: 0 if code is Exit.OK else code)

    def close(self) -> None:
        """Stop the streams; acts that are under way are waited for."""
        for stream in self._streams:
            stream.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for site in self._sites.values():
            site.close()

    # -- observations

    def _cursors(self, target: str) -> Mapping[str, Cursor]:
        return {run.row.name: run.cursor() for run in self._by_target[target]}

    def _take_in(self) -> None:
        try:
            observation = self._queue.get(timeout=_TURN_S)
        except Empty:
            return
        for _ in range(_MAX_DRAIN):
            self._apply(observation)
            try:
                observation = self._queue.get_nowait()
            except Empty:
                return
        self._apply(observation)

    def _apply(self, observation: Observation) -> None:
        now = self._clock.now()
        for run in self._by_target[observation.target]:
            match observation:
                case Received(message=message):
                    if message.get("run") in (None, run.row.name):
                        run.apply(message, now)
                    if message["type"] == "hello":
                        run.container("running")
                case Lost(error=error, retry_in_s=retry_in_s):
                    run.lost(str(error), now)
                    logger.info(
                        "stream of %s lost, next try in %.1f s: %s", observation.target, retry_in_s, error
                    )
                case ContainerSeen(state=state):
                    run.container(state)

    # -- acts

    def _turn(self, run: RunWatch) -> None:
        try:
            decision = run.turn(self._clock.now())
            if decision is not None and self._clock.monotonic() >= self._not_before.get(run.row.id, 0.0):
                self._begin(run, decision)
        except OrchestratorError:
            raise
        except Exception:  # the loop's last line of defence: one run's fault must not blind the others
            logger.exception("a turn failed", extra={"run": run.row.name})
            run.emit("fault", self._clock.now(), "a fault of dflashctl itself; see the log", level=Level.BAD)
            self._not_before[run.row.id] = self._clock.monotonic() + 10.0

    def _begin(self, run: RunWatch, decision: Decision) -> None:
        run.busy = True
        future = self._pool.submit(self._relaunch, run, decision)
        future.add_done_callback(partial(self._finish, run))

    def _relaunch(self, run: RunWatch, decision: Decision) -> str:
        """Stop what hangs, pass the gates, start the next attempt; runs in a worker thread."""
        site, tracker = self._sites[run.row.target_key], run.tracker
        snapshot = tracker.snapshot(self._clock.now())
        if snapshot is None or tracker.spec is None:
            raise ActRefused(f"{run.row.name}: run.json has not been seen yet")
        spec = spec_from_document(tracker.spec).with_changes(decision.changes)
        client = site.client()
        if run.diagnosis is not None and run.diagnosis.state is RunState.HUNG:
            run.emit("act", self._clock.now(), f"stopping attempt {snapshot.attempt}, which hangs")
            self._actor.stop(
                client,
                run.row.id,
                run.row.name,
                state_dir=site.state_dir,
                attempt=snapshot.attempt,
                by="watch",
                reason=decision.reason,
                grace_s=min(spec.stop_grace_s, 10.0),
            )
            self._wait_gone(run)
            snapshot = tracker.snapshot(self._clock.now()) or snapshot
        return self._start(run, decision, spec, site, closed_gates(snapshot, spec.gpus, self._gates(run)))

    def _start(
        self, run: RunWatch, decision: Decision, spec: RunSpec, site: Site, closed: tuple[str, ...]
    ) -> str:
        view = run.tracker.view
        if view is None or closed:
            raise ActRefused("; ".join(closed) or "no attempt seen")
        attempt = view.number + 1
        run.emit("act", self._clock.now(), f"relaunching as attempt {attempt}")
        started = self._actor.start(
            site.client(),
            run.row.id,
            spec,
            state_dir=site.state_dir,
            attempt=attempt,
            by="watch",
            reason=decision.reason,
            env=None,
            env_update=dict(decision.env_changes),
            rung=decision.rung,
            changes=dict(decision.changes),
        )
        return f"attempt {attempt} started, pid {started.get('trainer_pid')}"

    def _gates(self, run: RunWatch) -> Gates:
        return Gates(gpu_floor_bytes=run.playbook.gpu_floor_bytes, min_free_bytes=run.playbook.min_free_bytes)

    def _wait_gone(self, run: RunWatch) -> None:
        for _ in range(50):
            snapshot = run.tracker.snapshot(self._clock.now())
            if snapshot and not closed_gates(snapshot, (), self._gates(run)):
                return
            self._clock.sleep(0.1)

    def _finish(self, run: RunWatch, future: Future[str]) -> None:
        now = self._clock.now()
        error = future.exception()
        if error is None:
            run.emit("outcome", now, future.result(), level=Level.GOOD)
        elif isinstance(error, RunAlive):
            run.emit("outcome", now, f"not doubled: {error}")
        elif isinstance(error, (ActRefused, BlindError, GuestRefused, ConfigError)):
            if run.seen_gates != (str(error),):
                run.emit("gate", now, f"not yet: {error}", level=Level.WARNING)
            run.seen_gates = (str(error),)
        else:
            logger.error("an act failed", exc_info=error, extra={"run": run.row.name})
            run.emit("fault", now, f"the act failed: {error}", level=Level.BAD)
        self._not_before[run.row.id] = self._clock.monotonic() + _RETRY_GATE_S
        run.busy = False

    def _adopt_intents(self) -> None:
        """A watcher was killed between intent and outcome: say so; the streams show what became of it."""
        for run in self.runs:
            for action in self._record.open_intents(run.row.id):
                self._record.outcome(
                    action.id, "unknown: the watcher ended before the outcome", self._clock.now()
                )
