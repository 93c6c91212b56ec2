"""The curves as a PNG, by matplotlib: one colour an attempt, with every death and every resume."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConfigError
from orchestrator.plot.curves import back_to

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.plot.curves import Curves, Line

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f7f7f", "#4b3b8f")
DEATH, FAINT = "#b00020", "#5f6b76"
MAX_LEGEND = 8
LABEL_ROWS = 4
WIDTH_IN, LOSS_IN, PANEL_IN = 10.0, 4.7, 1.8


def png(curves: Curves) -> bytes:
    """Return the picture.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    out = BytesIO()
    _draw(curves).savefig(out, dpi=150, format="png")
    return out.getvalue()


def _draw(curves: Curves) -> Any:  # noqa: ANN401 - matplotlib is optional, and untyped here
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "plot: matplotlib is not installed",
            hint='install it with `pip install "dflashctl[plot]"`, or ask for svg or terminal',
        ) from error
    heights = [LOSS_IN, *(PANEL_IN for _ in curves.panels[1:])]
    figure = Figure(figsize=(WIDTH_IN, sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[
        :, 0
    ].tolist()
    loss = panels[0]
    for number, line in enumerate(curves.lines):
        _draw_line(panels, curves, line, curves.lines[number - 1] if number else None)
    # A name may hold a dollar sign, which would be mathematics.
    figure.suptitle(curves.title.replace("$", r"\$"), fontsize=13)
    for axes, panel in zip(panels, curves.panels, strict=True):
        axes.set_ylim(panel.low, panel.high)
        axes.set_ylabel(panel.title.replace(" of the fullest GPU (GiB)", ",\nfullest GPU (GiB)"))
        axes.grid(visible=True, color="#e3e7ea", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        for death in curves.deaths:
            axes.axvline(death.step, color=DEATH, alpha=0.35, linewidth=0.8, zorder=1)
    panels[-1].set_xlabel("optimizer step")
    if curves.notes:
        note = "\n".join(curves.notes)
        loss.text(0.995, 0.985, note, transform=loss.transAxes, ha="right", va="top", fontsize=8, color=FAINT)
    _draw_deaths(loss, curves)
    _draw_legend(figure, loss, curves.lines, has_deaths=bool(curves.deaths))
    return figure


def _draw_line(panels: Sequence[Any], curves: Curves, line: Line, before: Line | None) -> None:
    """Draw an attempt; a dotted line leads from where the last one ended back to where this one resumed."""
    label = f"attempt {line.attempt.n}"
    colour, loss = COLOURS[line.colour % len(COLOURS)], panels[0]
    if before is not None and (start := back_to(before, line)) is not None:
        label += f", resumed from step {line.attempt.first_step}"
        # Where the older curve passed the checkpointed step: that is the model this attempt began with.
        loss.plot(
            (before.steps[-1], start[0], line.steps[0]),
            (before.losses[-1], start[1], line.losses[0]),
            color=colour,
            linestyle=":",
            linewidth=1.3,
            zorder=2,
        )
        loss.plot(*start, marker="o", markersize=8, markerfacecolor="white", color=colour, zorder=4)
    for axes, panel in zip(panels, curves.panels, strict=True):
        if points := panel.of(line):
            width, alone = 1.6 if axes is loss else 1.2, "." if len(points) == 1 else ""
            axes.plot(
                *zip(*points, strict=True), color=colour, linewidth=width, marker=alone, label=label, zorder=3
            )


def _draw_deaths(axes: Any, curves: Curves) -> None:  # noqa: ANN401
    """Mark each death; names go to rows above the curves, where they do not overlap."""
    deaths, panel = curves.deaths, curves.panels[0]
    for number, death in enumerate(deaths):
        height = min(max(death.loss, panel.low), panel.high)
        axes.plot(
            death.step,
            height,
            marker="x",
            color=DEATH,
            markersize=10,
            markeredgewidth=2.4,
            zorder=5,
            clip_on=False,
        )
        axes.annotate(
            death.label,
            (death.step, height),
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
