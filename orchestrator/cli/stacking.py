"""stacks: where every rank of a run is, now or when it hung."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import options
from orchestrator.cli.context import SETTINGS, find_run, opened_record, print_json
from orchestrator.cli.reaching import site_of
from orchestrator.errors import GuestRefused, NotFound
from orchestrator.terminal import plain

if TYPE_CHECKING:
    from orchestrator.record import RunRow
    from orchestrator.watch.stacktaking import Taken

_MAX_BYTES = 8 << 20


def register(app: typer.Typer) -> None:
    """Add this file's verb."""
    app.command(rich_help_panel="Look")(stacks)


def stacks(
    run: options.RunName = None,
    host: options.Host = None,
    ct: options.Ct = None,
    kept: Annotated[
        bool, typer.Option("--kept", help="Not now: what was kept when it hung, or was last asked.")
    ] = False,
    attempt: Annotated[
        int | None, typer.Option("--attempt", help="With --kept: of which attempt; default the newest.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Ask every rank where it is and go on training: by py-spy if the container has it, else by a signal.

    The stacks are kept with the attempt. A watch takes them by itself before it
    stops what hangs.

    Examples:

        dflashctl stacks
        dflashctl stacks b32 --kept --attempt 2
        dflashctl stacks b32 --json
    """
    if attempt is not None and not kept:
        raise typer.BadParameter("--attempt belongs to --kept; only the newest attempt can be asked")
    with opened_record() as record:
        row = find_run(record, run, host, ct)
    if kept:
        _show_kept(row, attempt, as_json=as_json)
    else:
        _ask(row, as_json=as_json)


def _ask(row: RunRow, *, as_json: bool) -> None:
    from orchestrator.watch.stacktaking import take_stacks

    site = site_of(row)
    try:
        taken = take_stacks(site.client(), site.state_dir, row.name)
    except GuestRefused as refusal:
        if refusal.reason != "not_found":
            raise
        raise NotFound(
            f"{row.name} at {row.target_key}: {refusal.message}", hint="`--kept` shows those of a hang before"
        ) from refusal
    finally:
        site.close()
    if as_json:
        print_json(_body(row, taken))
        return
    out = SETTINGS.out
    for stack, way in zip(taken.stacks, taken.ways, strict=True):
        out.print(f"{stack.who}, process {stack.pid}, by {way}:", style="bold")
        for line in stack.text.splitlines():
            out.print(f"  {plain(line)}", markup=False)
    out.print(f"{row.name}: {plain(taken.text, 2000)}", markup=False)


def _body(row: RunRow, taken: Taken) -> dict[str, Any]:
    detail = taken.detail()
    for told, stack in zip(detail["ranks"], taken.stacks, strict=True):
        told["text"] = stack.text
    return {"run": row.name, "attempt": taken.attempt, "summary": taken.text, **detail}


def _show_kept(row: RunRow, attempt: int | None, *, as_json: bool) -> None:
    """Print the newest kept look of an attempt."""
    from orchestrator.connection import list_files, read_files

    number = _newest(row) if attempt is None else attempt
    older = (
        f"--attempt {number - 1} shows those of the one before, " if attempt is None and number > 1 else ""
    )
    none = NotFound(
        f"{row.name}: no stacks are kept of attempt {number}",
        hint=f"{older}`dflashctl stacks` asks a living run now",
    )
    site = site_of(row)
    try:
        client = site.client()
        found = [
            file.path for file in list_files(client, row.name, f"attempts/{number}/stacks", suffix=".txt")
        ]
        if not found:
            raise none
        folder = max(path.rpartition("/")[0] for path in found)
        texts = read_files(client, row.name, folder, suffix=".txt", limit_bytes=_MAX_BYTES)
    except GuestRefused as refusal:
        if refusal.reason != "not_found":
            raise
        raise none from refusal
    finally:
        site.close()
    decoded = {path: data.decode("utf-8", "replace") for path, data in sorted(texts.items())}
    if as_json:
        print_json({"run": row.name, "attempt": number, "path": folder, "files": decoded})
        return
    for path, text in decoded.items():
        SETTINGS.out.print(f"{path}:", style="bold")
        for line in text.splitlines():
            SETTINGS.out.print(f"  {plain(line)}", markup=False)


def _newest(row: RunRow) -> int:
    with opened_record() as record:
        return max((each.n for each in record.attempts(row.id)), default=1)
