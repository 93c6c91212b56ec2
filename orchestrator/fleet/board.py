"""What a watch tells and knows, kept for whoever draws it: one writer, readers in any thread.

The watch's thread writes; a reader gets frozen values, and is called when there is something new.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from orchestrator.clock import Clock
    from orchestrator.fleet.card import RunCard
    from orchestrator.watch.events import WatchEvent

EVERY_S = 0.25
MAX_LINES = 1_000
MAX_TAIL_CHARACTERS = 256 << 10
MAX_EVENTS = 500
_SAMPLES = frozenset({"log", "metrics"})


@dataclass(frozen=True)
class LogLine:
    """A line of an attempt's log. `seq` counts a run's lines from 1, whatever was forgotten."""

    seq: int
    attempt: int | None
    text: str


@dataclass(frozen=True)
class Told:
    """An event of a watch. `seq` counts all runs' events from 1."""

    seq: int
    event: WatchEvent


@dataclass(frozen=True)
class Fleet:
    """All runs at one instant. `version` grows with each change; `at` by the near clock."""

    version: int
    at: datetime | None
    cards: tuple[RunCard, ...]

    def card(self, run_id: int) -> RunCard | None:
        """Return one run's."""
        return next((card for card in self.cards if card.id == run_id), None)


@dataclass
class _Tail:
    lines: deque[LogLine] = field(default_factory=lambda: deque(maxlen=MAX_LINES))
    characters: int = 0
    count: int = 0
    num_metrics: int = 0

    def add(self, attempt: int | None, text: str) -> None:
        if len(self.lines) == MAX_LINES:
            self.characters -= len(self.lines[0].text)
        self.count += 1
        self.lines.append(LogLine(self.count, attempt, text))
        self.characters += len(text)
        while self.characters > MAX_TAIL_CHARACTERS and len(self.lines) > 1:
            self.characters -= len(self.lines.popleft().text)


class Board:
    """A `Sink` that keeps instead of drawing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._fleet = Fleet(0, None, ())
        self._tails: dict[tuple[str, str], _Tail] = {}  # by target and name of the run
        self._told: deque[Told] = deque(maxlen=MAX_EVENTS)
        self._num_told = 0
        self._listeners: list[Callable[[], None]] = []
        self._cards: Callable[[], Iterable[RunCard]] | None = None
        self._built_at: float | None = None
        self._has_news = False

    # -- the watch's side

    def draw(self, cards: Callable[[], Iterable[RunCard]]) -> None:
        """Say what the cards are made from; called in the watch's thread only."""
        self._cards = cards

    def emit(self, event: WatchEvent) -> None:
        """Keep one event."""
        self._has_news = True
        with self._lock:
            tail = self._tails.setdefault((event.target, event.run), _Tail())
            if event.kind == "log":
                tail.add(event.attempt, event.text)
            elif event.kind == "metrics":
                tail.num_metrics += 1
            else:
                self._num_told += 1
                self._told.append(Told(self._num_told, event))

    def refresh(self) -> None:
        """Make the cards anew, a few times a second, and call who listens if something changed."""
        ticks = self._clock.monotonic()
        if self._cards is None or (self._built_at is not None and ticks - self._built_at < EVERY_S):
            return
        self._built_at = ticks
        self.publish()

    def publish(self) -> None:
        """Make the cards anew now."""
        cards = tuple(self._cards()) if self._cards is not None else ()
        if cards == self._fleet.cards and not self._has_news:
            return
        self._has_news = False
        self._fleet = Fleet(self._fleet.version + 1, self._clock.now(), cards)
        for listener in tuple(self._listeners):
            listener()

    def forget(self, target: str, run: str) -> None:
        """Let go of a removed run's lines."""
        with self._lock:
            self._tails.pop((target, run), None)

    # -- the readers' side

    @property
    def fleet(self) -> Fleet:
        """All runs as they were drawn last."""
        return self._fleet

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have it called after each change, by the watch itself: it must not wait. Returns what ends that."""
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    def lines(self, target: str, run: str, after: int = 0) -> Sequence[LogLine]:
        """Return the run's newest lines that came after line `after`."""
        with self._lock:
            tail = self._tails.get((target, run))
            return [line for line in tail.lines if line.seq > after] if tail is not None else []

    def num_metrics(self, target: str, run: str) -> int:
        """Return how many lines of metrics came: when that grows, the record has new ones soon."""
        tail = self._tails.get((target, run))
        return tail.num_metrics if tail is not None else 0

    def told(self, after: int = 0, *, target: str | None = None, run: str | None = None) -> Sequence[Told]:
        """Return the newest events that came after event `after`, of all runs or of one."""
        with self._lock:
            return [
                each
                for each in self._told
                if each.seq > after and target in (None, each.event.target) and run in (None, each.event.run)
            ]
