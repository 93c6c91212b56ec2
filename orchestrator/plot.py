"""A picture of a run: the loss over its steps, one colour an attempt, with every death and every resume."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orchestrator.record import AttemptRow, MetricRow, Record

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f7f7f", "#4b3b8f")
DEATH, FAINT = "#b00020", "#5f6b76"
MAX_LEGEND = 8
LABEL_ROWS = 4
DEFAULT_SIZE_IN = (10.0, 6.5)


class Line(NamedTuple):
    """One attempt's points, in the order of steps."""

    attempt: AttemptRow
    steps: list[int]
    losses: list[float]
    speeds: list[tuple[int, float]]
    colour: str


class Death(NamedTuple):
    """Where an attempt ended and what its end is called."""

    step: int
    loss: float
    label: str


def plot_run(record: Record, run_id: int, out: Path) -> Path:
    """Write a PNG of the run's loss (nats a token) and speed (tokens a second) over steps; return its path.

    Raises:
        ConfigError: matplotlib is not installed, or `out` cannot be written.
        NotFound: No such run, or nothing to draw yet.
        RecordError: The record cannot be read.
    """
    name = next((r.name for r in record.runs(include_removed=True) if r.id == run_id), None)
    if name is None:
        raise NotFound(f"run {run_id}: no such run in the record", hint="list them with `dflashctl ps`")
    attempts = record.attempts(run_id)
    lines = _lines(attempts, record.metrics(run_id))
    if not lines:
        raise NotFound(f'run "{name}": no metric was recorded yet', hint="wait for its first logged step")
    figure = _draw(_title(name, len(lines), len(attempts)), lines)
    partial = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        figure.savefig(partial, dpi=150, format="png")
        partial.replace(out)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise ConfigError(
            f"{out}: the plot cannot be written: {error.strerror}",
            hint="name another file, in a folder that exists",
        ) from error
    return out


def _title(name: str, num_drawn: int, num_attempts: int) -> str:
    title = f"{name}: loss across {num_drawn} attempt{'s' if num_drawn > 1 else ''}"
    if unseen := num_attempts - num_drawn:
        title += f" ({unseen} more without a logged step)"
    return title


def _lines(attempts: Sequence[AttemptRow], metrics: Sequence[MetricRow]) -> list[Line]:
    lines = []
    for number, attempt in enumerate(attempts):
        mine = [m for m in metrics if m.attempt == attempt.n and m.kind == "train"]
        points = [(m.step, m.loss) for m in mine if m.loss is not None]
        speeds = [(m.step, m.tokens_per_s) for m in mine if m.tokens_per_s is not None]
        if points:
            colour = COLOURS[number % len(COLOURS)]
            lines.append(Line(attempt, [p[0] for p in points], [p[1] for p in points], speeds, colour))
    return lines


def _deaths(lines: Sequence[Line]) -> list[Death]:
    """Return the ends that were not a success, by step; those of one class at one place are told as one."""
    found: list[tuple[Death, int]] = []
    span = max(line.steps[-1] for line in lines) - min(line.steps[0] for line in lines) or 1
    for line in sorted(lines, key=lambda line: line.steps[-1]):
        failure = line.attempt.failure
        if not line.attempt.has_ended or failure is None or failure.value in {"completed", "healthy"}:
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


def _draw(title: str, lines: Sequence[Line]) -> Any:  # noqa: ANN401 - matplotlib is optional, and untyped here
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "plot: matplotlib is not installed", hint='install it with `pip install "dflashctl[plot]"`'
        ) from error
    figure = Figure(figsize=DEFAULT_SIZE_IN, layout="constrained")
    FigureCanvasAgg(figure)
    loss, speed = figure.subplots(2, 1, sharex=True, height_ratios=(5, 2))
    deaths = _deaths(lines)
    for number, line in enumerate(lines):
        _draw_line(loss, speed, line, lines[number - 1] if number else None)
    _draw_deaths(loss, deaths)
    # A name may hold a dollar sign, which would be mathematics.
    figure.suptitle(title.replace("$", r"\$"), fontsize=13)
    loss.set_ylabel("training loss (nats/token)")
    speed.set_ylabel("speed (tokens/s)")
    speed.set_xlabel("optimizer step")
    speed.set_ylim(bottom=0)
    for axes in (loss, speed):
        axes.grid(visible=True, color="#e3e7ea", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    _draw_legend(figure, loss, lines, has_deaths=bool(deaths))
    return figure


def _draw_line(loss: Any, speed: Any, line: Line, before: Line | None) -> None:  # noqa: ANN401
    """Draw an attempt; a dotted line leads from where the last one ended back to where this one resumed."""
    label = f"attempt {line.attempt.n}"
    resumed = line.attempt.first_step
    if before is not None and resumed:
        label += f", resumed from step {resumed}"
        # Where the older curve passed the checkpointed step: that is the model this attempt began with.
        back = max(
            (p for p in zip(before.steps, before.losses, strict=True) if p[0] <= resumed), default=None
        )
        start = (resumed, back[1] if back else line.losses[0])
        loss.plot(
            (before.steps[-1], start[0], line.steps[0]),
            (before.losses[-1], start[1], line.losses[0]),
            color=line.colour,
            linestyle=":",
            linewidth=1.3,
            zorder=2,
        )
        loss.plot(*start, marker="o", markersize=8, markerfacecolor="white", color=line.colour, zorder=4)
    alone = "." if len(line.steps) == 1 else ""
    loss.plot(line.steps, line.losses, color=line.colour, linewidth=1.6, marker=alone, label=label, zorder=3)
    if line.speeds:
        speed.plot(*zip(*line.speeds, strict=True), color=line.colour, linewidth=1.2, marker=alone)


def _draw_deaths(axes: Any, deaths: Sequence[Death]) -> None:  # noqa: ANN401
    """Mark each death; names go to rows above the curves, where they do not overlap."""
    for number, death in enumerate(deaths):
        axes.plot(
            death.step, death.loss, marker="x", color=DEATH, markersize=10, markeredgewidth=2.4, zorder=5
        )
        axes.annotate(
            death.label,
            (death.step, death.loss),
            xytext=(death.step, 1.03 + 0.055 * (number % LABEL_ROWS)),
            textcoords=axes.get_xaxis_transform(),
            ha="center",
            va="bottom",
            color=DEATH,
            fontsize=9,
            arrowprops={"arrowstyle": "-", "color": DEATH, "alpha": 0.35, "linewidth": 0.8},
            annotation_clip=False,
        )


def _draw_legend(figure: Any, axes: Any, lines: Sequence[Line], *, has_deaths: bool) -> None:  # noqa: ANN401
    """Name the attempts, below both axes where it hides no curve; of many, the first and the newest."""
    handles, labels = axes.get_legend_handles_labels()
    if len(lines) > MAX_LEGEND:
        half = MAX_LEGEND // 2
        skipped = axes.plot([], [], color="none")[0]
        handles = [*handles[:half], skipped, *handles[-half:]]
        labels = [*labels[:half], f"... {len(lines) - 2 * half} more", *labels[-half:]]
    if has_deaths:
        handles.append(axes.plot([], [], "x", color=DEATH, markersize=9, markeredgewidth=2.2)[0])
        labels.append("death")
    if any("resumed" in label for label in labels):
        handles.append(axes.plot([], [], "o", color=FAINT, markersize=8, markerfacecolor="white")[0])
        labels.append("checkpoint resumed from")
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
