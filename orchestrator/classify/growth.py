"""How fast a log grows, and when the disk is full of it: a forecast from sizes over time. Pure.

A burst is no trend: the forecast takes the slowest third of what was watched, and says nothing before the
growth has eaten a part of what is free.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

from orchestrator.durations import format_duration

WINDOW_S = 1800.0
MAX_SAMPLES = 256
PARTS = 3
MIN_SPAN_S = 30.0
MAX_SPAN_S = 900.0
SPAN_SHARE = 20  # a forecast of so many seconds wants a watch of one
HORIZON_S = 6 * 3600.0
CLEAR_TIMES = 2.0
CLEAR_S = 600.0


@dataclass(frozen=True)
class Sample:
    """Bytes at one instant, in seconds of any clock."""

    at_s: float
    log_bytes: int
    free_bytes: int


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What becomes of the disk if the log goes on as in the last `watched_s` seconds."""

    bytes_per_s: float
    free_bytes: int
    watched_s: float

    @property
    def full_in_s(self) -> float:
        """Seconds until nothing is free."""
        return self.free_bytes / self.bytes_per_s

    @property
    def short(self) -> str:
        """As little as fits beside a run's state."""
        return f"log +{in_bytes(self.bytes_per_s * 3600)}/h, disk full in about {_about(self.full_in_s)}"

    @property
    def summary(self) -> str:
        """One sentence for a person."""
        free, rate = in_bytes(self.free_bytes), in_bytes(self.bytes_per_s * 3600)
        watched = format_duration(self.watched_s)
        return (
            f"the log grows {rate}/h, and {free} are free: the disk is full in about "
            f"{_about(self.full_in_s)} (watched for {watched})"
        )


@dataclass
class LogGrowth:
    """The sizes of one log over time, and whether its growth was told."""

    horizon_s: float = HORIZON_S
    is_told: bool = False
    _samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    _calm_since_s: float | None = None

    def add(self, sample: Sample) -> None:
        """Take in a sample; one of a shorter log, or of a clock that was set back, begins the watch anew."""
        last = self._samples[-1] if self._samples else sample
        if sample.log_bytes < last.log_bytes or sample.at_s < last.at_s:
            self._samples.clear()
            self._calm_since_s = None
        if self._samples and sample.at_s == last.at_s:
            return
        self._samples.append(sample)
        while len(self._samples) > 2 and sample.at_s - self._samples[1].at_s >= WINDOW_S:
            self._samples.popleft()

    def forget(self) -> None:
        """Nobody watched for a while: what grew meanwhile has no rate."""
        self._samples.clear()

    def forecast(self) -> Forecast | None:
        """Return what the samples say; None while they are too few, or nothing grows steadily."""
        if len(self._samples) < PARTS + 1:
            return None
        first, last = self._samples[0], self._samples[-1]
        span_s = last.at_s - first.at_s
        edges = [self._at(first.at_s + span_s * part / PARTS) for part in range(PARTS + 1)]
        slowest = min(after - before for before, after in pairwise(edges))
        rate = slowest / (span_s / PARTS)
        if rate <= 0:
            return None
        found = Forecast(bytes_per_s=rate, free_bytes=last.free_bytes, watched_s=span_s)
        wanted_s = min(max(found.full_in_s / SPAN_SHARE, MIN_SPAN_S), MAX_SPAN_S)
        return found if span_s >= wanted_s else None

    def news(self) -> Forecast | None:
        """Return a forecast that a person must hear of: once, until the growth has ended for a while."""
        found = self.forecast()
        if not self.is_told:
            self.is_told = found is not None and found.full_in_s < self.horizon_s
            return found if self.is_told else None
        self._calm_down(found)
        return None

    def _calm_down(self, found: Forecast | None) -> None:
        now_s = self._samples[-1].at_s if self._samples else None
        is_calm = found is None or found.full_in_s > CLEAR_TIMES * self.horizon_s
        if not is_calm or now_s is None:
            self._calm_since_s = None
        elif self._calm_since_s is None:
            self._calm_since_s = now_s
        elif now_s - self._calm_since_s >= CLEAR_S:
            self.is_told, self._calm_since_s = False, None

    def _at(self, at_s: float) -> float:
        """The log's size at an instant between the first sample and the last, by the nearest two."""
        before = self._samples[0]
        for sample in self._samples:
            if sample.at_s >= at_s:
                share = (at_s - before.at_s) / (sample.at_s - before.at_s) if sample is not before else 0.0
                return before.log_bytes + share * (sample.log_bytes - before.log_bytes)
            before = sample
        return float(before.log_bytes)


def average(log_bytes: int, age_s: float, free_bytes: int) -> Forecast | None:
    """Return the forecast of one look: by the attempt's whole time; None of a young one or an idle log."""
    if log_bytes <= 0 or age_s <= 0:
        return None
    found = Forecast(bytes_per_s=log_bytes / age_s, free_bytes=free_bytes, watched_s=age_s)
    wanted_s = max(found.full_in_s / SPAN_SHARE, MAX_SPAN_S)
    return found if age_s >= wanted_s and found.full_in_s < HORIZON_S else None


def in_bytes(count: float) -> str:
    """Return bytes as people say them: `12 GB`, `1.2 GB`, `640 MB`."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            value = count / size
            return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return f"{count:.0f} bytes"


def _about(seconds: float) -> str:
    """Two figures are all that a forecast is good for."""
    if seconds < 60:
        return "a minute"
    step_s = 60 if seconds < 3600 else 600
    return format_duration(round(seconds / step_s) * step_s)
