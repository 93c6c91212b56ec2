"""diff: what changed between an attempt that worked and one that does not."""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import options
from orchestrator.cli.context import SETTINGS, counted, find_run, opened_record, print_json
from orchestrator.cli.reaching import site_of
from orchestrator.errors import BlindError, ConfigError, Exit, GuestRefused, NotFound
from orchestrator.terminal import one_line

if TYPE_CHECKING:
    from orchestrator.compare import Attempt, Comparison
    from orchestrator.record import Record, RunRow

HASH_CHARS = 64
SHOWN_HASH_CHARS = 16


def register(app: typer.Typer) -> None:
    """Add this file's verb."""
    app.command(rich_help_panel="Look")(diff)


def diff(
    one: Annotated[
        str | None,
        typer.Argument(metavar="[RUN[/ATTEMPT]]", help="The older attempt, or the only run meant."),
    ] = None,
    two: Annotated[
        str | None, typer.Argument(metavar="[RUN[/ATTEMPT]]", help="The newer attempt; default see above.")
    ] = None,
    host: options.Host = None,
    ct: options.Ct = None,
    as_json: options.Json = False,
) -> None:
    """Say what changed between two attempts: torch, CUDA, driver, packages, cache, code, configuration, data.

    With one argument: the last attempt that made progress, against the newest (or
    the one named). The most suspicious comes first. Exit code 0 if nothing
    differs, 1 if something does, as diff has it.

    Examples:

        dflashctl diff
        dflashctl diff b32/2 b32/5
        dflashctl diff b32 b33 --json
    """
    from orchestrator.compare import compare

    first, last = _pair(one, two, host, ct)
    found = compare(first, last)
    if as_json:
        print_json(
            {
                "old": first.label,
                "new": last.label,
                "notes": list(found.notes),
                "changes": [
                    {"group": c.group, "key": c.key, "old": c.old, "new": c.new} for c in found.changes
                ],
            }
        )
    else:
        _print(first, last, found)
    raise typer.Exit(Exit.ERROR if found.changes else Exit.OK)


def parse(text: str) -> tuple[str, int | None]:
    """Return run and attempt of `RUN` or `RUN/ATTEMPT`.

    Raises:
        ConfigError: What follows the slash is no attempt's number.
    """
    run, slash, number = text.partition("/")
    if not slash:
        return run, None
    if not number.isdecimal() or int(number) < 1:
        raise ConfigError(
            f"{one_line(text)!r}: {one_line(number)!r} is no attempt's number", hint="write RUN/3"
        )
    return run, int(number)


def _pair(one: str | None, two: str | None, host: str | None, ct: int | None) -> tuple[Attempt, Attempt]:
    from orchestrator.compare import choose

    run, number = parse(one) if one is not None else (None, None)
    with opened_record() as record:
        row = find_run(record, run, host, ct)
        known = _known(record, row)
        other, end = parse(two) if two is not None else (None, None)
        last_row = find_run(record, other, host, ct) if other is not None else row
        last_known = _known(record, last_row)
    if two is not None:
        return _attempt(row, number, known), _attempt(last_row, end, last_known)
    chosen = choose(_all(row, known), number)
    if chosen is None:
        what = f"no attempt {number}, or none" if number is not None else "no attempt"
        raise NotFound(
            f"{row.name} at {row.target_key}: {what} with another before it",
            hint="name two: `dflashctl diff RUN/1 OTHER/1`",
        )
    return chosen


def _known(record: Record, row: RunRow) -> dict[int, Attempt]:
    """Return what a watch wrote down of the run's attempts."""
    from orchestrator.compare import Attempt

    return {
        each.n: Attempt(
            run=row.name,
            number=each.n,
            environment=each.environment,
            spec=each.spec,
            made_progress=each.exit_code == 0 or (each.last_step or 0) > (each.first_step or 0),
        )
        for each in record.attempts(row.id)
    }


def _all(row: RunRow, known: dict[int, Attempt]) -> dict[int, Attempt]:
    """Return every attempt as it is now: the record may not know the newest. Unreached, what it knows."""
    try:
        return {**known, **_read(row, "attempts")}
    except BlindError as error:
        if not any(each.environment for each in known.values()):
            raise
        why = one_line(error.message)
        SETTINGS.err.print(f"{why}; this is what the record knows", markup=False)
        return known


def _attempt(row: RunRow, number: int | None, known: dict[int, Attempt]) -> Attempt:
    if number is None:
        found = _all(row, known)
    elif number in known and known[number].environment is not None and known[number].spec is not None:
        return known[number]
    else:
        found = _read(row, f"attempts/{number}")
    if not found:
        raise NotFound(f"{row.name} at {row.target_key}: no attempt of it left a file there")
    return found[max(found)]


def _read(row: RunRow, path: str) -> dict[int, Attempt]:
    """Return the attempts of a run below `path`, as their files tell now."""
    from orchestrator.compare import Attempt, progressed
    from orchestrator.connection import read_files

    site = site_of(row)
    try:
        told = read_files(site.client(), row.name, path, suffix=".json")
    except GuestRefused as refusal:
        if refusal.reason != "not_found":
            raise
        raise NotFound(refusal.message, hint=f"`dflashctl events {row.name}` tells its attempts") from refusal
    finally:
        site.close()
    documents: dict[int, dict[str, Any]] = {}
    for name, data in told.items():
        _, number, *rest = name.split("/")
        if number.isdecimal() and len(rest) == 1:
            documents.setdefault(int(number), {})[rest[0].removesuffix(".json")] = _object(data)
    return {
        number: Attempt(
            run=row.name,
            number=number,
            environment=files.get("environment"),
            spec=files.get("run"),
            made_progress=progressed(files.get("heartbeat"), has_result=files.get("result") is not None),
        )
        for number, files in documents.items()
    }


def _object(data: bytes) -> dict[str, Any] | None:
    """Return the object; None for what is none, as a file that could not be read."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _print(first: Attempt, last: Attempt, found: Comparison) -> None:
    out = SETTINGS.out
    for note in found.notes:
        out.print(f"note: {note}", markup=False)
    if not found.changes:
        out.print(f"{first.label} and {last.label}: no difference", markup=False)
        return
    out.print(f"{first.label} -> {last.label}: {counted(len(found.changes), 'difference')}", markup=False)
    for group, changes in groupby(found.changes, key=lambda change: change.group):
        out.print(f"{group}:", markup=False, style="bold")
        for change in changes:
            key = one_line(change.key, 100)
            out.print(f"  {key}: {_value(change.old)} -> {_value(change.new)}", markup=False)


def _value(value: object) -> str:
    if value is None:
        return "(none)"
    text = one_line(str(value), 120)
    is_hash = len(text) == HASH_CHARS and all(char in "0123456789abcdef" for char in text)
    return text[:SHOWN_HASH_CHARS] if is_hash else text
