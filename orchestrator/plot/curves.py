"""A run's curves as plain data: one line an attempt, its deaths, and the limits of each panel."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.errors import NotFound
from orchestrator.plot.scale import Point, left_out, robust_limits, thinned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from orchestrator.record import AttemptRow, GpuRow, MetricRow, Record

GIB = float(2**30)
# So many points are drawn of all lines of a panel together; a picture has no more columns to show.
MAX_POINTS = 6_000
MAX_LINE_POINTS = 1_200
MIN_LINE_POINTS = 60
NO_DEATH = frozenset({"completed", "healthy"})


class Line(NamedTuple):
    """One attempt's points, in the order of steps. Memory is the fullest GPU's, in GiB."""

    attempt: AttemptRow
    steps: list[float]
    losses: list[float]
    speeds: list[Point]
    memory: list[Point]
    colour: int  # of the attempts in order, from 0


class Death(NamedTuple):
    """Where an attempt ended and what its end is called."""

    step: float
    loss: float
    label: str


class Panel(NamedTuple):
    """What one panel shows; `note` tells what lies outside of its limits, empty if nothing does."""

    title: str
    low: float
    high: float
    of: Callable[[Line], Sequence[Point]]
    note: str = ""


class Curves(NamedTuple):
    """All that is drawn of a run."""

    name: str
    num_attempts: int
    lines: list[Line]
    deaths: list[Death]
    panels: list[Panel]  # loss first

    @property
    def title(self) -> str:
        """Names the run, and how many of its attempts are drawn."""
        drawn = len(self.lines)
        text = f"{self.name}: loss across {drawn} attempt{'s' if drawn > 1 else ''}"
        unseen = self.num_attempts - drawn
        return f"{text} ({unseen} more without a logged step)" if unseen else text

    @property
    def span(self) -> Point:
        """The first and the last step of all lines."""
        first = min(line.steps[0] for line in self.lines)
        last = max(line.steps[-1] for line in self.lines)
        return first, last if last > first else first + 1

    @property
    def notes(self) -> list[str]:
        """What a reader has to know of the picture."""
        return [panel.note for panel in self.panels if panel.note]


def read_curves(record: Record, run_id: int, attempt: int | None = None) -> Curves:
    """Return what the record has of a run, or of one attempt, to be drawn.

    Raises:
        NotFound: No such run, or nothing to draw yet.
        RecordError: The record cannot be read.
    """
    name = next((r.name for r in record.runs(include_removed=True) if r.id == run_id), None)
    if name is None:
        raise NotFound(f"run {run_id}: no such run in the record", hint="list them with `dflashctl ps`")
    attempts = [each for each in record.attempts(run_id) if attempt in (None, each.n)]
    curves = make_curves(name, attempts, record.metrics(run_id, attempt), record.gpus(run_id))
    if curves is None:
        raise NotFound(f'run "{name}": no metric was recorded yet', hint=_missing_hint(record, run_id))
    return curves


def _missing_hint(record: Record, run_id: int) -> str:
    """Return what to do where there is no metric: a command of the user's own may never write one."""
    spec = next(row.spec for row in record.runs(include_removed=True) if row.id == run_id)
    if spec.get("command"):
        return "a command's curves come from `metrics.jsonl` in its attempt's directory, an object a step"
    return "wait for its first logged step"


def make_curves(
    name: str, attempts: Sequence[AttemptRow], metrics: Sequence[MetricRow], gpus: Sequence[GpuRow]
) -> Curves | None:
    """Return what is drawn of them, None if no step was logged."""
    whole = _lines(attempts, metrics, gpus)
    if not whole:
        return None
    panels = [
        _panel("training loss (nats/token)", whole, loss_points),
        _panel("speed (tokens/s)", whole, speed_points, base=0.0),
        _panel("memory of the fullest GPU (GiB)", whole, memory_points, base=0.0),
    ]
    share = min(MAX_LINE_POINTS, max(MIN_LINE_POINTS, MAX_POINTS // len(whole)))
    lines = [_thinned(line, share) for line in whole]
    drawn = [panels[0], *(panel for panel in panels[1:] if any(panel.of(line) for line in lines))]
    return Curves(name=name, num_attempts=len(attempts), lines=lines, deaths=_deaths(whole), panels=drawn)


def loss_points(line: Line) -> list[Point]:
    """Return (step, loss)."""
    return list(zip(line.steps, line.losses, strict=True))


def speed_points(line: Line) -> list[Point]:
    """Return (step, tokens a second)."""
    return line.speeds


def memory_points(line: Line) -> list[Point]:
    """Return (step, GiB)."""
    return line.memory


def back_to(before: Line, line: Line) -> Point | None:
    """Return where the older curve passed the step that `line` resumed from; None if it began afresh."""
    resumed = line.attempt.first_step
    if not resumed:
        return None
    passed = [point for point in loss_points(before) if point[0] <= resumed]
    return float(resumed), max(passed)[1] if passed else line.losses[0]


def _lines(
    attempts: Sequence[AttemptRow], metrics: Sequence[MetricRow], gpus: Sequence[GpuRow]
) -> list[Line]:
    lines = []
    steps: dict[int, list[MetricRow]] = {}
    readings: dict[int, list[GpuRow]] = {}
    for metric in metrics:
        if metric.kind == "train":
            steps.setdefault(metric.attempt, []).append(metric)
    for reading in gpus:
        readings.setdefault(reading.attempt, []).append(reading)
    for number, attempt in enumerate(attempts):
        mine = steps.get(attempt.n, [])
        points = [(float(m.step), m.loss) for m in mine if m.loss is not None and math.isfinite(m.loss)]
        speeds = [(float(m.step), m.tokens_per_s) for m in mine if m.tokens_per_s is not None]
        if points:
            memory = _memory(readings.get(attempt.n, []), mine)
            lines.append(
                Line(attempt, [p[0] for p in points], [p[1] for p in points], speeds, memory, number)
            )
    return lines


def _memory(readings: Iterable[GpuRow], metrics: Sequence[MetricRow]) -> list[Point]:
    """Return the fullest GPU's memory by steps: a reading lies between the two steps logged around it.

    What was read before the first step is left out, and what was after the last lies on that.
    """
    ordered = sorted((m.at, m.step) for m in metrics)
    times = [at for at, _ in ordered]
    found: dict[float, float] = {}
    for reading in readings:
        after = bisect_left(times, reading.at)
        if reading.memory_used_bytes is None or (after == 0 and reading.at < times[0]):
            continue
        if after == len(times) or after == 0:
            step = float(ordered[min(after, len(times) - 1)][1])
        else:
            (begin, low), (end, high) = ordered[after - 1], ordered[after]
            share = (reading.at - begin) / (end - begin)
            step = round(low + share * (high - low), 2)
        found[step] = max(found.get(step, 0.0), reading.memory_used_bytes / GIB)
    return sorted(found.items())


def _deaths(lines: Sequence[Line]) -> list[Death]:
    """Return the ends that were not a success, by step; those of one class at one place are told as one."""
    found: list[tuple[Death, int]] = []
    span = max(line.steps[-1] for line in lines) - min(line.steps[0] for line in lines) or 1
    for line in sorted(lines, key=lambda line: line.steps[-1]):
        failure = line.attempt.failure
        if not line.attempt.has_ended or failure is None or failure.value in NO_DEATH:
            continue
        death = Death(max(line.attempt.last_step or 0, line.steps[-1]), line.losses[-1], failure.value)
        same = [
            i for i, (d, _) in enumerate(found) if d.label == death.label and death.step - d.step < span / 50
        ]
        if same:
            found[same[-1]] = (found[same[-1]][0], found[same[-1]][1] + 1)
        else:
            found.append((death, 1))
    return [d._replace(label=f"{d.label} x{n}") if n > 1 else d for d, n in found]


def _panel(
    title: str, lines: Sequence[Line], of: Callable[[Line], Sequence[Point]], base: float | None = None
) -> Panel:
    values = [value for line in lines for _, value in of(line)]
    if not values:
        return Panel(title, 0.0, 1.0, of)
    low, high = robust_limits(values)
    note = left_out(title.partition(" (")[0], values, low, high)
    low = low if base is None else min(low, base)
    room = (high - low or abs(high) or 1.0) * 0.05
    return Panel(title, low - room if base is None else low, high + room, of, note)


def _thinned(line: Line, limit: int) -> Line:
    points = thinned(loss_points(line), limit)
    return line._replace(
        steps=[p[0] for p in points],
        losses=[p[1] for p in points],
        speeds=thinned(line.speeds, limit),
        memory=thinned(line.memory, limit),
    )
