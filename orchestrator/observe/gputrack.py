"""What the GPUs of a run did while it made steps, and since it makes none. No I/O, no clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING

from orchestrator.types.seen import Gpu, GpuStill

if TYPE_CHECKING:
    from collections.abc import Iterable

_WINDOW = 60  # readings
# Utilization is an average and a reading comes late: what is read this soon after a step belongs to it.
MOVING_S = 5.0


@dataclass
class _Span:
    low: float
    high: float

    def widen(self, value: float) -> None:
        self.low, self.high = min(self.low, value), max(self.high, value)


@dataclass
class GpuTrack:
    """Readings of one attempt, bounded; the last one stands until the next."""

    _moved_at: datetime | None = None
    _last: tuple[Gpu, ...] | None = None
    _stepping: dict[int, deque[float]] = field(default_factory=dict)
    _utilization: dict[int, _Span] = field(default_factory=dict)
    _power: dict[int, _Span] = field(default_factory=dict)
    _still: tuple[GpuStill, ...] | None = None  # None: to be worked out

    @property
    def is_empty(self) -> bool:
        """Whether nothing was read yet."""
        return self._last is None

    def moved(self, now: datetime) -> None:
        """The run made progress: what is read later is a new stillness."""
        self._moved_at, self._still = now, None
        self._utilization.clear()
        self._power.clear()

    def read(self, gpus: Iterable[Gpu], now: datetime, *, steps: bool) -> None:
        """Take in a new reading; `steps` says whether what moved last was a step of the training."""
        self._last = tuple(gpus)
        if not self._is_moving(now):
            self._widen_all(self._last)
            return
        for gpu in self._last:
            if steps and gpu.power_w is not None:
                self._stepping.setdefault(gpu.index, deque(maxlen=_WINDOW)).append(gpu.power_w)

    def still(self, now: datetime) -> tuple[GpuStill, ...]:
        """Return what was read since the last progress, by GPU; it is asked for many times a second."""
        if self._last is None or self._is_moving(now):
            return ()
        if self._still is None:
            self._widen_all(self._last)
            self._still = self._spans()
        return self._still

    def _is_moving(self, now: datetime) -> bool:
        return self._moved_at is not None and abs(now - self._moved_at) < timedelta(seconds=MOVING_S)

    def _widen_all(self, gpus: tuple[Gpu, ...]) -> None:
        for gpu in gpus:
            if gpu.utilization_pct is not None:
                _widen(self._utilization, gpu.index, gpu.utilization_pct)
            if gpu.power_w is not None:
                _widen(self._power, gpu.index, gpu.power_w)
        self._still = None

    def _spans(self) -> tuple[GpuStill, ...]:
        return tuple(
            GpuStill(
                index=index,
                utilization_pct=(span.low, span.high),
                power_w=(self._power[index].low, self._power[index].high) if index in self._power else None,
                stepping_w=median(self._stepping[index]) if index in self._stepping else None,
            )
            for index, span in sorted(self._utilization.items())
        )


def _widen(spans: dict[int, _Span], index: int, value: float) -> None:
    spans.setdefault(index, _Span(value, value)).widen(value)
