"""How a provisioning is told: a line a step, the recap, and a bar for the step that is being done."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from orchestrator.cli.context import SETTINGS, print_json
from orchestrator.errors import Exit
from orchestrator.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.errors import OrchestratorError
    from orchestrator.provision import Job, Moment, Outcome, Step

_STYLES = {"ok": "green", "changed": "yellow", "would": "cyan", "failed": "bold red", "skipped": "dim"}
_STATUS_WIDTH = 8
_NAME_WIDTH = 10
_LONGEST = 500
_TEXT_WIDTH = 44


def show(outcome: Outcome) -> None:
    """Say a step's outcome in a line."""
    out = SETTINGS.out
    out.print(f"{outcome.status.value:<{_STATUS_WIDTH}}", style=_STYLES[outcome.status.value], end="")
    said = outcome.seen
    if outcome.does is not None:
        took = f" ({outcome.seconds:.1f} s)" if outcome.seconds else ""
        said = f"{outcome.seen}: {outcome.does}{took}"
    text = one_line(said, _LONGEST)
    indent = _STATUS_WIDTH + _NAME_WIDTH
    head, *rest = (
        textwrap.wrap(text, max(20, out.width - indent), break_on_hyphens=False)
        if out.is_terminal
        else [text]
    )
    out.print(f"{outcome.step:<{_NAME_WIDTH}}{head}", markup=False)
    for line in rest:
        out.print(" " * indent + line, markup=False)


def close(job: Job, outcomes: list[Outcome], took_s: float, *, as_json: bool, is_check: bool) -> Exit:
    """Say what all came to, or all of it as an object; return the exit code."""
    counts = Counter(outcome.status.value for outcome in outcomes)
    error = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
    code = error.exit_code if error else Exit.NOT_READY if counts["would"] else Exit.OK
    if as_json:
        print_json(
            {
                "target": job.site.target_key,
                "exit_code": int(code),
                "check": is_check,
                "seconds": took_s,
                "changed": counts["changed"],
                "would_change": counts["would"],
                "steps": [_body(outcome) for outcome in outcomes],
            }
        )
        return code
    if error is not None:
        tell_error(error, next(outcome.tail for outcome in outcomes if outcome.error is not None))
    change = f"would={counts['would']}" if is_check else f"changed={counts['changed']}"
    recap = f"ok={counts['ok']} {change} failed={counts['failed']} skipped={counts['skipped']}"
    SETTINGS.out.print(f"{job.site.target_key}: {recap}, in {took_s:.1f} s", markup=False)
    if counts["changed"] and error is None:
        SETTINGS.out.print("ready: `dflashctl launch` takes this environment by itself", markup=False)
    return code


def tell_error(error: OrchestratorError, tail: tuple[str, ...]) -> None:
    """Say what a step said last, and the error with what to do."""
    err = SETTINGS.err
    for line in tail:
        err.print(f"    {one_line(line, _LONGEST)}", markup=False, style="dim")
    hint = f"; {error.hint}" if error.hint else ""
    err.print(f"dflashctl: {one_line(error.message, 1500)}{hint}", markup=False)


def _body(outcome: Outcome) -> dict[str, Any]:
    error = outcome.error
    told = (
        {"code": error.code, "message": error.message, "hint": error.hint, "tail": outcome.tail}
        if error
        else None
    )
    return {
        "step": outcome.step,
        "status": outcome.status.value,
        "seen": outcome.seen,
        "does": outcome.does,
        "seconds": outcome.seconds,
        "error": told,
    }


class Bars:
    """One bar at a time, of the step that is being done."""

    def __init__(self) -> None:
        self.step = ""
        self._open: Any = None

    def begin(self, step: Step, does: str) -> Callable[[Moment], None]:
        """Open a step's bar."""
        del does
        self.end()
        self.step = step.name
        self._open = bar_of(step.name)
        told: Callable[[Moment], None] = self._open.__enter__()
        return told

    def end(self) -> None:
        """Take it away."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None


@contextmanager
def bar_of(step: str) -> Iterator[Callable[[Moment], None]]:
    """A bar for one step; silent where standard error is no terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=12),
        TextColumn("{task.fields[amount]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=SETTINGS.err, disable=not SETTINGS.err.is_terminal, transient=True
    ) as bar:
        task = bar.add_task(step, total=None, amount="")

        def told(moment: Moment) -> None:
            text = one_line(f"{step}: {moment.text}", 200)
            text = text if len(text) <= _TEXT_WIDTH else f"{text[: _TEXT_WIDTH - 1]}~"
            # At its whole length a bar would stop its clock, and the step goes on.
            done = min(moment.done, moment.total * 0.999) if moment.total is not None else 0
            bar.update(task, description=text, completed=done, total=moment.total, amount=_amount(moment))

        yield told


def _amount(moment: Moment) -> str:
    if moment.total is None:
        return ""
    if not moment.is_bytes:
        return f"{moment.done}%"
    return f"{moment.done / 1e6:.0f}/{moment.total / 1e6:.0f} MB"
