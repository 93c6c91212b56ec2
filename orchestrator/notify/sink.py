"""The watch's sink that also sends: events go on to the view, and what matters to people elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from orchestrator.durations import format_duration
from orchestrator.notify import deadman
from orchestrator.notify.messages import Translator
from orchestrator.notify.policy import Policy
from orchestrator.notify.sender import CLOSE_S, Report, Worker, join
from orchestrator.watch.events import Level, WatchEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from typing_extensions import Self

    from orchestrator.clock import Clock
    from orchestrator.notify.memory import Memory
    from orchestrator.notify.message import Message
    from orchestrator.notify.settings import Settings
    from orchestrator.notify.targets import Target
    from orchestrator.watch.events import Sink

T = TypeVar("T")

TICK_S = 1.0
DEADMAN = "the dead-man ping"


@dataclass
class _Failing:
    """A target that does not take messages; told once, until one goes."""

    lost: int = 0


class NotifySink:
    """Wraps a view; use as a context manager. Nothing here waits for a target but its end."""

    def __init__(
        self,
        view: Sink,
        settings: Settings,
        targets: Sequence[Target],
        clock: Clock,
        memory: Memory,
        *,
        close_s: float = CLOSE_S,
    ) -> None:
        self._view = view
        self._clock = clock
        self._memory = memory
        self._close_s = close_s
        self._translator = Translator(settings.blind_after_s)
        self._translator.resume(memory.told)
        self._policy = Policy(settings.rate, settings.quiet, settings.severity, memory.told)
        self._reports: SimpleQueue[Report[Message]] = SimpleQueue()
        self._workers = [Worker(target.name, target.send, self._reports) for target in targets]
        self._pings: SimpleQueue[Report[str]] = SimpleQueue()
        self._deadman: Worker[str] | None = None
        if settings.deadman is not None:
            self._deadman = Worker(DEADMAN, deadman.ping, self._pings, max_waiting=1, retry_after_s=())
        self._ping_url = settings.deadman.secret if settings.deadman is not None else ""
        self._ping_every_s = settings.deadman_every_s
        self._pinged_at: float | None = None
        self._ticked_at: float | None = None
        self._watcher: deadman.Runs | None = None
        self._failing: dict[str, _Failing] = {}

    def attach(self, watcher: deadman.Runs) -> None:
        """Say whose runs the dead-man ping speaks for."""
        self._watcher = watcher

    def __enter__(self) -> Self:
        for worker in self._workers:
            worker.start()
        if self._deadman is not None:
            self._deadman.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        now = self._clock.now()
        self._admit(self._translator.flush(), now)
        self._send(self._policy.flush(now))
        if count := max((worker.num_waiting for worker in self._workers), default=0):
            limit = format_duration(self._close_s)
            self._tell(now, f"sending {_counted(count)} before the end, at most {limit}", Level.INFO)
        late = join(self._workers, self._close_s)
        self._hear(now)
        for name, count in late:
            self._tell(now, f"{name} did not take {_counted(count)} before the watch ended", Level.WARNING)

    def emit(self, event: WatchEvent) -> None:
        """Show the event, and send it if it is worth a message."""
        self._view.emit(event)
        self._admit(self._translator.take(event), event.at)

    def refresh(self) -> None:
        """Redraw; once a second see what time alone makes worth a message, and how the sending went."""
        self._view.refresh()
        ticks = self._clock.monotonic()
        if self._ticked_at is not None and ticks - self._ticked_at < TICK_S:
            return
        self._ticked_at = ticks
        now = self._clock.now()
        self._admit(self._translator.tick(now), now)
        self._send(self._policy.tick(now))
        self._ping(now, ticks)
        self._hear(now)

    def _admit(self, messages: Sequence[Message], now: datetime) -> None:
        for message in messages:
            self._send(self._policy.admit(message, now))

    def _send(self, message: Message | None) -> None:
        if message is not None:
            for worker in self._workers:
                worker.post(message)

    def _ping(self, now: datetime, ticks: float) -> None:
        is_due = self._pinged_at is None or ticks - self._pinged_at >= self._ping_every_s
        if self._deadman is None or self._watcher is None or not is_due:
            return
        # One that is still under way is not followed by another: its end is what is waited for.
        if self._deadman.num_waiting == 0 and deadman.saw_all(self._watcher.runs, now):
            self._pinged_at = ticks
            self._deadman.post(self._ping_url)

    def _hear(self, now: datetime) -> None:
        _drain(self._reports, lambda report: self._heard(report.name, report.problem, now, report.item))
        _drain(self._pings, lambda report: self._heard(report.name, report.problem, now, None))

    def _heard(self, name: str, problem: str | None, now: datetime, message: Message | None) -> None:
        known = self._failing.get(name)
        if problem is not None:
            if known is None:
                self._failing[name] = known = _Failing()
                self._tell(now, f"{name} could not be told: {problem}; the watch goes on", Level.WARNING)
            known.lost += 1
            return
        if known is not None:
            del self._failing[name]
            self._tell(now, f"{name} takes messages again; {_counted(known.lost)} did not go", Level.INFO)
        if message is not None and (why := self._memory.add(message.keys)):
            self._heard("the memory of what was told", why, now, None)

    def _tell(self, now: datetime, text: str, level: Level) -> None:
        """Tell it in the view; it is about no run."""
        self._view.emit(
            WatchEvent(kind="notify", at=now, run="-", target="-", attempt=None, text=text, level=level)
        )


def _counted(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"


def _drain(reports: SimpleQueue[Report[T]], hear: Callable[[Report[T]], None]) -> None:
    while True:
        try:
            hear(reports.get_nowait())
        except Empty:
            return
