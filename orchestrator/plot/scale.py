"""What an axis shows: its limits, its round numbers, and as few points as a picture can tell apart. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_FOR_LIMITS = 40  # with fewer values each of them is the curve

Point: TypeAlias = "tuple[float, float]"


def robust_limits(values: Sequence[float]) -> tuple[float, float]:
    """Return the limits of an axis: all values, unless a few far off ones would flatten the rest."""
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    if len(ordered) < MIN_FOR_LIMITS:
        return low, high
    bottom, top = ordered[int(0.05 * (len(ordered) - 1))], ordered[int(0.95 * (len(ordered) - 1))]
    body = top - bottom
    if body <= 0:
        return low, high
    return (
        bottom - body if bottom - low > 1.5 * body else low,
        top + body if high - top > 1.5 * body else high,
    )


def left_out(what: str, values: Sequence[float], low: float, high: float) -> str:
    """Return what a reader has to know of the values beyond the limits; empty if there are none."""
    above = sum(value > high for value in values)
    below = sum(value < low for value in values)
    told = [f"{above} of {len(values)} points above {high:.3g} (up to {max(values):.3g})"] if above else []
    told += [f"{below} below {low:.3g} (down to {min(values):.3g})"] if below else []
    return f"{what}: {' and '.join(told)} are not shown" if told else ""


def thinned(points: Sequence[Point], limit: int) -> list[Point]:
    """Return about `limit` of the points: of each of equal spans of steps the lowest and the highest."""
    if len(points) <= limit:
        return list(points)
    first, last = points[0], points[-1]
    width = (last[0] - first[0]) / max(1, limit // 2) or 1.0
    spans: dict[int, list[Point]] = {}
    for point in points:
        spans.setdefault(int((point[0] - first[0]) / width), []).append(point)
    kept = {first, last}
    for each in spans.values():
        kept |= {min(each, key=lambda p: p[1]), max(each, key=lambda p: p[1])}
    return sorted(kept)


def ticks(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round numbers between the limits."""
    rough = (high - low) / max(1, count)
    if not (rough > 0 and math.isfinite(rough)):
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough * 0.999)
    return [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def number_text(value: float) -> str:
    """Return a tick's number, short: 12k, 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.4g}{letter}"
    return f"{value:.4g}"
