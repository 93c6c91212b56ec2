"""playbook show, check, explain: what is done about a failure, and what would be done next about a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import options
from orchestrator.cli.context import (
    SETTINGS,
    find_run,
    load_playbook,
    opened_record,
    print_json,
)
from orchestrator.cli.idle import idle, idle_parts
from orchestrator.durations import format_duration
from orchestrator.errors import NotFound
from orchestrator.limits import limit_data, limit_words
from orchestrator.terminal import plain
from orchestrator.types.failure import FailureClass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.playbook import Playbook, Rule

app = typer.Typer(
    help="What is done about each failure: show it, check a file, explain a run.", no_args_is_help=True
)

ClassName = Annotated[
    str | None,
    typer.Argument(help="A failure class, such as oom_cuda, or a rule of your own; default all."),
]


@app.command()
def show(failure: ClassName = None, playbook: options.Playbook = None, as_json: options.Json = False) -> None:
    """Show the playbook in use: the rule of every class, or one rule with its ladder.

    Examples:

        dflashctl playbook show
        dflashctl playbook show oom_cuda
        dflashctl playbook show --playbook my.yaml --json
    """
    book = load_playbook(playbook)
    rules = [_rule(failure, book)] if failure is not None else [*_own(book), *map(book.rule, FailureClass)]
    if as_json:
        print_json({**_globals(book), "rules": [rule_json(rule) for rule in rules]})
        return
    out = SETTINGS.out
    if failure is not None:
        for line in rule_lines(rules[0], book):
            out.print(line, markup=False)
        return
    out.print(f"{book.source}: {_limits_line(book)}", markup=False)
    out.print(f"hangs after {', '.join(limit_words(limit_data(book.limits)))}", markup=False)
    _print_table(rules)


def _print_table(rules: Sequence[Rule]) -> None:
    """Print a line a rule, and below it why: as a sixth column it would be a few letters wide."""
    from rich.padding import Padding
    from rich.text import Text

    rows = [("CLASS", "ACT", "TIMES", "THEN", "WITH"), *map(_cells, rules)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    out = SETTINGS.out
    out.print(lines[0], markup=False, style="bold")
    for line, rule in zip(lines[1:], rules, strict=True):
        out.print(line, markup=False)
        out.print(Padding(Text(plain(rule.why), style="dim"), (0, 0, 0, 4)), soft_wrap=False)


def _cells(rule: Rule) -> tuple[str, str, str, str, str]:
    rungs = [f"{len(rule.ladder)} rungs"] if rule.ladder else []
    times, then = (str(rule.attempts), rule.then.value) if rule.attempts else ("", "")
    does = ", ".join([*(each.value for each in rule.remedies), *rungs])
    return rule.key, rule.act.value, times, then, does


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A playbook file.")], as_json: options.Json = False
) -> None:
    """Check a playbook file, and say what in it can never happen. A wrong one: exit code 2, file and line.

    Examples:

        dflashctl playbook check playbooks/mine.yaml
    """
    from orchestrator.playbook import load, shipped

    book, base = load_playbook(file), load(shipped())
    differ = sorted(each.value for each in FailureClass if book.rules[each] != base.rules[each])
    notes = idle_parts(book)
    shipped_limits = limit_data(base.limits)
    limits = {key: value for key, value in limit_data(book.limits).items() if value != shipped_limits[key]}
    if as_json:
        names = [each.name for each in book.custom]
        body = {"file": str(file), "differs_in": differ, "custom": names, "limits": limits, "notes": notes}
        print_json(body)
        return
    own = (
        f"; other than the shipped one in {', '.join(differ)}"
        if differ
        else "; its rules are the shipped ones"
    )
    SETTINGS.out.print(f"{file}: right{own}", markup=False)
    if book.custom:
        named = ", ".join(each.name for each in book.custom)
        SETTINGS.out.print(f"  rules of its own, the first that matches decides: {named}", markup=False)
    if limits:
        SETTINGS.out.print(f"  limits of its own: {', '.join(limit_words(limits))}", markup=False)
    for note in notes:
        SETTINGS.out.print(f"  note: {note}", markup=False)


@app.command()
def explain(
    run: options.RunName = None,
    host: options.Host = None,
    ct: options.Ct = None,
    if_: Annotated[
        str | None, typer.Option("--if", help="As if it died of this class now, such as oom_cuda.")
    ] = None,
    playbook: options.WatchPlaybook = None,
    as_json: options.Json = False,
) -> None:
    """Say what would happen to a run next and why: budget, ceiling, ladder, gates, and when. Nothing is done.

    Examples:

        dflashctl playbook explain
        dflashctl playbook explain b32 --if oom_cuda
        dflashctl playbook explain b32 --json
    """
    from orchestrator.cli.prospects import look_ahead, prospect_lines

    supposed = _class(if_) if if_ is not None else None
    with opened_record() as record:
        row = find_run(record, run, host, ct)
        history = record.history(row.id)
    body = look_ahead(row, history, load_playbook(playbook or row.playbook), supposed)
    if as_json:
        print_json(body)
        return
    for line in prospect_lines(body):
        SETTINGS.out.print(plain(line), markup=False)


def _own(book: Playbook) -> list[Rule]:
    """The rules of the user's own, which come before those of the classes."""
    return [each.rule for each in book.custom]


def _rule(name: str, book: Playbook) -> Rule:
    """Return the rule of the user's own of that name, with or without its prefix, or that of a class."""
    own = next((rule for rule in _own(book) if name in (rule.key, rule.name)), None)
    return own if own is not None else book.rule(_class(name))


def _class(name: str) -> FailureClass:
    try:
        return FailureClass(name)
    except ValueError:
        import difflib

        known = [each.value for each in FailureClass]
        near = difflib.get_close_matches(name, known, n=1)
        guess = f'; did you mean "{near[0]}"?' if near else ""
        raise NotFound(f"no failure class {name!r}{guess}", hint=f"there are: {', '.join(known)}") from None


def _globals(book: Playbook) -> dict[str, Any]:
    return {
        "playbook": book.source,
        "backoff_s": list(book.backoff_s),
        "jitter": book.jitter,
        "max_attempts_per_day": book.max_attempts_per_day,
        "crash_loop": {"deaths": book.loop_deaths, "within_s": book.loop_window_s},
        "gpu_floor_bytes": book.gpu_floor_bytes,
        "min_free_bytes": book.min_free_bytes,
        "grace_s": book.grace_s,
        "limits": limit_data(book.limits),
        "allow": {key: {"minimum": b.minimum, "maximum": b.maximum} for key, b in book.allow.items()},
    }


def _limits_line(book: Playbook) -> str:
    waits = ", ".join(format_duration(each) for each in book.backoff_s)
    allowed = "; ".join(f"{key}: {bounds.text}" for key, bounds in book.allow.items()) or "nothing"
    loop = f"{book.loop_deaths} deaths within {format_duration(book.loop_window_s)} without progress"
    return (
        f"waits {waits}; at most {book.max_attempts_per_day} attempts in 24 hours; {loop} call a person; "
        f"a ladder may change {allowed}"
    )


def rule_json(rule: Rule) -> dict[str, Any]:
    """Return a rule as plain data."""
    return {
        "class": rule.failure.value,
        "name": rule.name,
        "act": rule.act.value,
        "why": rule.why,
        "attempts": rule.attempts,
        "then": rule.then.value if rule.attempts else None,
        "do": [each.value for each in rule.remedies],
        "backoff_s": None if rule.backoff_s is None else list(rule.backoff_s),
        "needs_progress": rule.needs_progress,
        "ladder": [
            {
                "why": rung.why,
                "set": dict(rung.changes),
                "scale": dict(rung.scales),
                "env": dict(rung.env),
                "do": [each.value for each in rung.remedies],
            }
            for rung in rule.ladder
        ],
    }


def rule_lines(rule: Rule, book: Playbook) -> list[str]:
    """Return a rule for people, a line each."""
    lines = [f"{rule.key}: {rule.act.value}. {rule.why}"]
    if rule.attempts:
        times = "once" if rule.attempts == 1 else f"{rule.attempts} times"
        lines.append(f"  {times} without an advancing checkpoint, then {rule.then.value}")
    waits = rule.backoff_s or (book.backoff_s if rule.attempts else ())
    if waits:
        lines.append(f"  waits {', '.join(format_duration(each) for each in waits)}")
    if rule.needs_progress:
        lines.append("  only if the attempt finished a step; else a person is called")
    lines += [f"  before it: {each.value}" for each in rule.remedies]
    for number, rung in enumerate(rule.ladder, 1):
        parts = [f"{k}={v}" for k, v in (*rung.changes, *rung.env)]
        parts += [f"{key} x {factor:g}" for key, factor in rung.scales] + [r.value for r in rung.remedies]
        lines.append(f"  rung {number}: {', '.join(parts) or 'as it was'}. {rung.why}")
    return lines + [f"  note: {note}" for note in idle(rule, book)]
