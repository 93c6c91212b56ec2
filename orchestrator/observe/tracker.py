"""Fold the guest's messages about one run into a snapshot of its newest attempt. No I/O, no clock."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING, Any

from orchestrator.observe import parse
from orchestrator.observe.attempt import AttemptView, Sighting
from orchestrator.observe.boot import Boot
from orchestrator.observe.hostlog import HostLog
from orchestrator.observe.onlookers import Onlooker, onlookers
from orchestrator.types.seen import Absent, Blind, Gpu, Liveness, Phase, Present, Reading
from orchestrator.types.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from orchestrator.userrules import CustomRule
    from orchestrator.wire import Message

_KEPT_OLDER = 3
# The guest answers a ping every 5 s. After so long without a word nothing is known of the present, and the
# time until the next word was not watched: this program may have been stopped, or its machine asleep.
UNWATCHED_S = 20.0
CLOCK_JITTER_S = 1.0
NEVER_STARTED_S = 60.0  # the guest itself gives a start 15 s; the next one fences what is still under way
NOT_LOOKED = Blind("not looked yet")


class RunTracker:
    """One run as seen through one container's stream."""

    def __init__(self, run: str, ct: int | None = None) -> None:
        self.run = run
        self.host = HostLog(ct)
        self.view: AttemptView | None = None
        self.custom: Sequence[CustomRule] = ()  # the rules of the user's own that logs are read for
        # After a cut the rest of attempts that ended meanwhile comes before the newest one's.
        self._older: dict[int, AttemptView] = {}
        self.spec: dict[str, Any] | None = None
        self.liveness: Reading[Liveness] = NOT_LOOKED
        self.gpus: Reading[tuple[Gpu, ...]] = NOT_LOOKED
        self.stop: dict[str, Any] | None = None
        self.checkpoint_step: int | None = None
        self.container: str | None = None
        self.container_lock: str | None = None
        self.host_up_s: float | None = None
        self.boot: Boot | None = None
        self.disk_free_bytes: int | None = None
        self.onlookers: tuple[Onlooker, ...] = ()
        self.looked_at: datetime | None = None
        self.is_synced = False  # everything up to the present has come since the stream was opened
        self.clock_skew_s: float = 0.0
        self._is_new_stream = False  # no `run` line came since it was opened
        self._is_removed = False

    @property
    def median_step_s(self) -> float | None:
        """The rolling median of seconds a step, from the attempt's own metrics."""
        times = self.view.step_times if self.view else []
        return median(times) if times else None

    @property
    def median_phase_s(self) -> dict[Phase, float]:
        """The rolling median of seconds in each phase of this attempt that ended while it was watched."""
        times = self.view.phase_times if self.view else {}
        return {phase: median(values) for phase, values in times.items()}

    def lost(self, reason: str) -> None:
        """The stream broke: nothing is known of the present, and what was known stays as the past."""
        self.is_synced = False
        self.liveness = Blind(reason)
        self.gpus = Blind(reason)

    def apply(self, message: Message, now: datetime) -> Sighting:
        """Fold in one message that is about this run or its container."""
        if self.looked_at is not None and self.view is not None:
            gap = now - self.looked_at
            # A clock that was set back would hide a hang for as long as it was set back.
            if gap > timedelta(seconds=UNWATCHED_S) or gap < -timedelta(seconds=CLOCK_JITTER_S):
                self.view.forgive(gap)
        self.looked_at = now
        kind = message["type"]
        if kind == "hello":
            self.clock_skew_s = parse.finite(message, "now") - now.timestamp()
            self.boot = Boot.of(message)
            self.host_up_s = parse.number(message, "uptime_s")
            self._is_new_stream = True
        elif kind == "gpu":
            self.gpus = parse.gpus(message)
            if isinstance(self.gpus, Present):
                self.host.note_gpus(self.gpus.value)
            self._track_gpus(now)
        elif kind == "disk":
            self.disk_free_bytes = message.get("free_bytes")
        elif kind == "watchers":
            self.onlookers = onlookers(message, self.run)
        elif kind == "run":
            return self._apply_run(message, now)
        elif message.get("attempt") is not None:
            return self._apply_attempt_of(int(message["attempt"]), message, now)
        return Sighting()

    def _apply_attempt_of(self, number: int, message: Message, now: datetime) -> Sighting:
        """An attempt that dies at once may send its log and its end before the first `run` line names it."""
        is_fresh = self._begin(number, now)
        view = self.view if self.view is not None and self.view.number == number else self._older_view(number)
        sighting = view.take(message, now)
        if sighting.log and self._kind == "command" and isinstance(view.heartbeat, Absent):
            view.gpu_track.moved(now)  # its log is all that tells of it
        return replace(sighting, attempt=number) if is_fresh else sighting

    def _begin(self, newest: int, now: datetime) -> bool:
        """Go over to the attempt if it is a newer one; returns whether it is."""
        if self.view is not None and newest <= self.view.number:
            return False
        if self.view is not None:
            self._older[self.view.number] = self.view
        self.view = AttemptView(number=newest, seen_at=now, rules=self.custom)
        self.view.log_track.begin(now)
        # That the one before is gone says nothing of this one.
        self.liveness, self.is_synced = NOT_LOOKED, False
        return True

    def _older_view(self, number: int) -> AttemptView:
        view = self._older.setdefault(number, AttemptView(number=number))
        for old in sorted(self._older)[:-_KEPT_OLDER]:
            del self._older[old]
        return view

    def _apply_run(self, message: Message, now: datetime) -> Sighting:
        is_first, self._is_new_stream = self._is_new_stream, False
        newest = message.get("attempt")
        if self._is_of_another(newest, is_first=is_first):
            self._note_removal(message, newest)
            return Sighting()
        self.spec = message.get("spec") or self.spec
        fresh = newest is not None and self._begin(int(newest), now)
        if self.view is None or newest != self.view.number:
            return Sighting()  # it is of the past: what is told already is newer
        self._is_removed = False
        if message.get("alive") is not None:
            self.liveness = parse.reading(message["alive"], parse.liveness, "the run's liveness")
            self.is_synced = True
        self.stop = message.get("stop")
        self.checkpoint_step = message.get("checkpoint_step")
        if message.get("attempt_info"):
            self.view.info = message["attempt_info"]
        return Sighting(attempt=newest if fresh else None)

    def _is_of_another(self, newest: int | None, *, is_first: bool) -> bool:
        """Whether the attempt that is watched was removed; attempts only come, so fewer of them show it."""
        if self.view is None or (newest is not None and newest >= self.view.number):
            return False
        return newest is None or is_first or self._is_removed

    def _note_removal(self, message: Message, newest: int | None) -> None:
        """An attempt that was there and is not: with the run's directory went what proves how it is."""
        self._is_removed = self.is_synced = True
        self.liveness = Blind(parse.removal(message.get("alive"), newest))

    def _track_gpus(self, now: datetime) -> None:
        """Let the newest attempt have the reading of its own GPUs."""
        view, wanted = self.view, (self.spec or {}).get("gpus")
        if view is None or not isinstance(self.gpus, Present):
            return
        mine = [gpu for gpu in self.gpus.value if not wanted or gpu.index in wanted]
        beat = view.heartbeat.value if isinstance(view.heartbeat, Present) else None
        steps = beat.phase is Phase.TRAIN if beat is not None else view.log_track.tells_steps
        view.gpu_track.read(mine, now, steps=steps)

    @property
    def _is_by_hand(self) -> bool:
        """Whether the newest attempt has neither a supervisor's file nor a spec of its own."""
        is_supervised = self.view is None or self.view.info is not None
        of = (self.spec or {}).get("attempt")
        return not is_supervised and self.view is not None and of is not None and of != self.view.number

    @property
    def _kind(self) -> str:
        return str((self.spec or {}).get("kind") or "trainer")

    @property
    def own_gpus(self) -> frozenset[int] | None:
        """The cards that the run may use; None for all that its container sees."""
        given = (self.spec or {}).get("gpus")
        return frozenset(int(index) for index in given) if isinstance(given, list) else None

    def _liveness_at(self, now: datetime) -> Reading[Liveness]:
        """A look stands for the present as long as the guest keeps answering."""
        silent_s = (now - self.looked_at).total_seconds() if self.looked_at else 0.0
        if isinstance(self.liveness, Present) and silent_s > UNWATCHED_S:
            return Blind(f"no word from the guest for {silent_s:.0f} s")
        return self.liveness

    def _started_at(self, view: AttemptView, now: datetime) -> datetime | None:
        """One that nothing was ever started of (its start was killed) counts as begun, after a while."""
        if (began_at := view.began_at) is not None:
            return began_at
        is_gone = isinstance(self.liveness, Present) and self.liveness.value.is_gone
        is_late = view.seen_at is not None and now - view.seen_at > timedelta(seconds=NEVER_STARTED_S)
        return view.seen_at if is_gone and is_late else None

    def snapshot(self, now: datetime) -> Snapshot | None:
        """Return all that is known of the newest attempt; None before the first attempt was seen."""
        view = self.view
        if view is None:
            return None
        stop = self.stop if self.stop and self.stop.get("attempt") in (None, view.number) else None
        started_at = self._started_at(view, now)
        boot, info, log = self.boot, view.info or {}, view.log_reading()
        view.told_step(log.last_step, now)
        view.log_track.told(log.mark, now)
        if view.gpu_track.is_empty:  # the guest sends what changed: an older attempt had the reading
            self._track_gpus(now)
        return Snapshot(
            now=now,
            run=self.run,
            attempt=view.number,
            liveness=self._liveness_at(now),
            heartbeat=view.heartbeat,
            exit=view.exit,
            last_words=view.last_words,
            result=view.result,
            log=log,
            gpus=self.gpus,
            stop_by=stop.get("by") if stop else None,
            stop_reason=stop.get("reason") if stop else None,
            started_at=started_at,
            heartbeat_seen_at=view.heartbeat_seen_at,
            log_grew_at=view.log_grew_at,
            step_seen_at=view.step_seen_at,
            log_pace=view.log_track.pace(),
            gpus_still=view.gpu_track.still(now),
            container=self.container,
            container_lock=self.container_lock,
            container_restarted=boot is not None and bool(info) and boot.is_another(info),
            host_rebooted=boot is not None and boot.is_of_another_host_boot(info),
            clock_skew_s=self.clock_skew_s,
            host_up_s=self.host_up_s,
            host_lines=self.host.lines(started_at, self.own_gpus),
            disk_free_bytes=self.disk_free_bytes,
            kind=self._kind,
            is_by_hand=self._is_by_hand,
        )
