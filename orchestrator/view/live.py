"""A watch on a terminal: the lines scroll, and a small table of runs and GPUs stays below them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.terminal import plain
from orchestrator.types.failure import RunState
from orchestrator.types.seen import Blind, Gpu, Present
from orchestrator.view.plain import PlainSink

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from typing_extensions import Self

    from orchestrator.clock import Clock
    from orchestrator.observe import RunTracker
    from orchestrator.watch.events import WatchEvent
    from orchestrator.watch.runwatch import RunWatch

_STYLES = {
    RunState.HEALTHY: "green",
    RunState.FINISHED: "bold green",
    RunState.DEAD: "bold red",
    RunState.HUNG: "bold red",
}
# The terminal echoes Ctrl-C behind the last line; were that to wrap, the frame could not be drawn over.
_MARGIN = 3
_MAX_HELD = 1000  # lines printed at once


class _Runs(Protocol):
    @property
    def runs(self) -> Sequence[RunWatch]: ...


class LiveSink:
    """Draws the present of every run below the scrolling lines; use as a context manager."""

    def __init__(self, console: Console, clock: Clock, *, show_log: bool = True, many: bool = False) -> None:
        self._console = console
        self._clock = clock
        colour = console.color_system is not None and not console.no_color
        self._lines = PlainSink(sys.stdout, show_log=show_log, colour=colour, many=many)
        self._live = Live(console=console, refresh_per_second=4, transient=False, auto_refresh=False)
        self._watcher: _Runs | None = None
        self._drawn_at = 0.0
        self._held: list[str] = []

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._print()
        self._draw()  # what stays on the screen is the end, not what was drawn last
        self._live.__exit__(None, None, None)

    def attach(self, watcher: _Runs) -> None:
        """Say whose runs are drawn."""
        self._watcher = watcher

    def emit(self, event: WatchEvent) -> None:
        """Print one event above the table; the trainer's lines are held until something else or `refresh`."""
        self._held += self._lines.lines(event)
        if event.kind != "log" or len(self._held) >= _MAX_HELD:
            self._print()

    def _print(self) -> None:
        # At once: each print draws the table anew, and a death is not told before the log is printed.
        if self._held:
            lines, self._held = self._held, []
            self._console.print(Text.from_ansi("\n".join(lines)), soft_wrap=True)

    def refresh(self) -> None:
        """Print what is held, and redraw the table, at most four times a second."""
        self._print()
        now = self._clock.monotonic()
        if self._watcher is None or now - self._drawn_at < 0.25:
            return
        self._drawn_at = now
        self._draw()

    def _draw(self) -> None:
        if self._watcher is not None:
            width = max(1, self._console.width - _MARGIN)
            self._live.update(Constrain(self._frame(self._watcher.runs), width), refresh=True)

    def _frame(self, runs: Sequence[RunWatch]) -> RenderableType:
        """Return the runs by target, with each target's GPUs once."""
        now = self._clock.now()
        targets: dict[str, list[RunWatch]] = {}
        for run in runs:
            targets.setdefault(run.row.target_key, []).append(run)
        parts: list[RenderableType] = []
        for group in targets.values():
            parts += [self._run(run, now) for run in group]
            if cells := [
                Text(gpu_text(gpu), style="dim", no_wrap=True)
                for gpu in gpus_of([run.tracker for run in group])
            ]:
                parts.append(Columns(cells, padding=(0, 2)))
        return Group(*parts)

    def _run(self, run: RunWatch, now: datetime) -> RenderableType:
        tracker, view = run.tracker, run.tracker.view
        state = run.diagnosis.state if run.diagnosis else RunState.NEW
        table = Table.grid(padding=(0, 1))
        table.add_row(
            Text(run.row.name, style="bold"), Text(run.row.target_key, style="dim"), *self._progress(run)
        )
        cells = Text(f"attempt {view.number if view else '-'} ", style="dim", no_wrap=False, overflow="fold")
        cells.append(state.value, style=_STYLES.get(state, "yellow"))
        if run.decision is not None and run.decision.not_before is not None:
            left = (run.decision.not_before - now).total_seconds()
            if left > 0:
                cells.append(f"  {run.decision.kind.value} in {left:.0f} s", style="yellow")
        age = (now - tracker.looked_at).total_seconds() if tracker.looked_at else None
        if isinstance(tracker.liveness, Blind):
            cells.append(f"  blind: {plain(tracker.liveness.reason)}", style="yellow")
        elif age is not None and age > 10:
            cells.append(f"  last look {age:.0f} s ago", style="yellow")
        if (forecast := run.notices.forecast) is not None:
            cells.append(f"  {forecast.short}", style="yellow")
        return Group(table, cells)

    @staticmethod
    def _progress(run: RunWatch) -> list[RenderableType]:
        view = run.tracker.view
        if view is None or not isinstance(view.heartbeat, Present):
            is_new = run.diagnosis is None or run.diagnosis.state is RunState.NEW
            return [Text("starting" if is_new else "no heartbeat", style="dim")]
        beat = view.heartbeat.value
        cells: list[RenderableType] = [Text(beat.phase.value)]
        if beat.total_steps:
            cells += [
                ProgressBar(total=beat.total_steps, completed=beat.step, width=24),
                Text(f"{beat.step}/{beat.total_steps}"),
            ]
        if beat.loss is not None:
            cells.append(Text(f"loss {beat.loss:.3f}"))
        if beat.tokens_per_s is not None:
            cells.append(Text(f"{beat.tokens_per_s / 1e3:.1f} ktok/s"))
        if beat.checkpoint_step is not None:
            cells.append(Text(f"saved {beat.checkpoint_step}", style="dim"))
        return cells


def gpus_of(trackers: Sequence[RunTracker]) -> list[Gpu]:
    """Return the GPUs that runs of one target use; all that are seen if one of them names none."""
    readings = [tracker.gpus for tracker in trackers]
    seen = next((reading.value for reading in readings if isinstance(reading, Present)), ())
    # The spec comes out of the container: a list is expected, anything else names no GPU.
    named = [(tracker.spec or {}).get("gpus") for tracker in trackers]
    lists = [indices for indices in named if isinstance(indices, list)]
    return [gpu for gpu in seen if len(lists) < len(named) or any(gpu.index in indices for indices in lists)]


def gpu_text(gpu: Gpu) -> str:
    """Return one GPU in a few words; what could not be read is left out."""
    if gpu.problem:
        return f"GPU{gpu.index} {plain(gpu.problem)}"
    parts = [f"GPU{gpu.index}"]
    if gpu.utilization_pct is not None:
        parts.append(f"{gpu.utilization_pct:.0f}%")
    if gpu.memory_used_bytes is not None and gpu.memory_total_bytes:
        parts.append(f"{gpu.memory_used_bytes / 2**30:.1f}/{gpu.memory_total_bytes / 2**30:.0f}GiB")
    if gpu.power_w is not None:
        parts.append(f"{gpu.power_w:.0f}W")
    if gpu.temperature_c is not None:
        parts.append(f"{gpu.temperature_c:.0f}C")
    return " ".join(parts)
