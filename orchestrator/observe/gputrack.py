"""What the GPUs of a run did while it made steps, and since it makes none. No I/O, no clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING

from orchestrator.types import Gpu, GpuStill

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
    _stepping: dict[int, deque[float]] = field(default_factory=dict)
    _utilization: dict[int, _Span] = field(default_factory=dict)
    _power: dict[int, _Span] = field(default_factory=dict)

    def moved(self, now: datetime) -> None:
        """The run made progress: what is read later is a new stillness."""
        self._moved_at = now
        self._utilization.clear()
        self._power.clear()

    def read(self, gpus: Iterable[Gpu], now: datetime, *, steps: bool) -> None:
        """Take in one reading; `steps` says whether what moved was a step of the training."""
        moved_at = self._moved_at
        if moved_at is not None and abs(now - moved_at) < timedelta(seconds=MOVING_S):
            for gpu in gpus:
                if steps and gpu.power_w is not None:
                    self._stepping.setdefault(gpu.index, deque(maxlen=_WINDOW)).append(gpu.power_w)
            return
        for gpu in gpus:
            if gpu.utilization_pct is not None:
                _widen(self._utilization, gpu.index, gpu.utilization_pct)
            if gpu.power_w is not None:
                _widen(self._power, gpu.index, gpu.power_w)

    def still(self) -> tuple[GpuStill, ...]:
        """Return what was read since the last progress, by GPU."""
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
