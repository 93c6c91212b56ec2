"""rm and prune: remove ended runs and old checkpoints, with sizes told first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import options
from orchestrator.cli.context import SETTINGS, confirm, counted, find_run, opened_record, print_json
from orchestrator.cli.mirrored import Copies, copies_of
from orchestrator.cli.reaching import site_of
from orchestrator.errors import BlindError, RunAlive
from orchestrator.sizes import size_text
from orchestrator.terminal import plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.record import RunRow
    from orchestrator.site import Site


def register(app: typer.Typer) -> None:
    """Add this file's verbs."""
    app.command(rich_help_panel="Tidy")(rm)
    app.command(rich_help_panel="Tidy")(prune)


def _remove(
    site: Site,
    row: RunRow,
    what: str,
    keep: int,
    copies: Copies,
    *,
    yes: bool,
    as_json: bool,
    cache: bool = False,
) -> None:
    request: dict[str, Any] = {
        "state_dir": site.state_dir,
        "run": row.name,
        "what": what,
        "keep": keep,
        "cache": cache,
    }
    (sizes,) = site.client().call("sizes", request, timeout_s=120.0)
    if sizes["alive"]:
        raise RunAlive(
            f'{row.target_key}: run "{row.name}" is alive; nothing was removed', hint="stop it first"
        )
    items = [item for item in sizes["items"] if not item.get("kept")]
    if not as_json:
        _list(items, [item for item in sizes["items"] if item.get("kept") and what == "run"], copies)
    parts = []
    if items:
        total = size_text(sum(item["bytes"] for item in items))
        parts.append(f"{counted(len(items), 'folder')}, {total}, at {row.target_key}")
    if copies.size:
        parts.append(f"{size_text(copies.size)} of copied logs here")
    if not parts:
        if not as_json:
            SETTINGS.out.print(f"{row.name} at {row.target_key}: nothing to remove", markup=False)
        return
    confirm(f"remove {', and '.join(parts)}?", yes=yes)
    removed: dict[str, Any] = {"bytes": 0, "items": []}
    if items:
        (removed,) = site.client().call("remove", request, timeout_s=600.0)
    copied = copies.remove()
    if as_json:
        told = {"bytes": removed["bytes"], "items": removed["items"], "mirror_bytes": copied}
        print_json({"run": row.name, "target": row.target_key, **told})
    else:
        here = f", and {size_text(copied)} of copied logs here" if copied else ""
        SETTINGS.out.print(
            f"{row.name} at {row.target_key}: {size_text(removed['bytes'])} removed{here}", markup=False
        )


def _list(items: Sequence[Mapping[str, Any]], kept: Sequence[Mapping[str, Any]], copies: Copies) -> None:
    """Show what is to go, and what stays."""
    lines = [(item["bytes"], plain(item["path"])) for item in items]
    lines += [(item["bytes"], f"{plain(item['path'])} stays") for item in kept]
    if copies.size:
        lines.append((copies.size, copies.text))
    for size, text in lines:
        SETTINGS.out.print(f"  {size_text(size):>10}  {text}", markup=False)


def rm(
    run: options.RunName = None,
    host: options.Host = None,
    ct: options.Ct = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="Only the record's entry; the container is not touched.")
    ] = False,
    cache: Annotated[
        bool, typer.Option("--cache", help="Its compile cache too, which stays otherwise.")
    ] = False,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Remove an ended run: its folder in the container, checkpoints included, and its entry in the record.

    The copy of its logs on this machine goes too, also with --forget. Its compile
    cache stays in the container, for a run of the same name, unless --cache is
    given.

    Examples:

        dflashctl rm b32
        dflashctl rm b32 --forget --yes
    """
    with opened_record() as record:
        row = find_run(record, run, host, ct)
        copies = copies_of(record, row)
        if not forget:
            site = site_of(row)
            try:
                _remove(site, row, "run", 0, copies, yes=yes, as_json=as_json, cache=cache)
            except BlindError as error:
                gone = f"if it is gone for good, `dflashctl rm {row.name} --forget` removes the entry here"
                error.hint = f"{error.hint}; {gone}" if error.hint else gone
                raise
            finally:
                site.close()
        record.remove_run(row.id, SETTINGS.clock.now())
    copied = copies.remove()
    if forget and not as_json:
        here = f"; {size_text(copied)} of copied logs removed here" if copied else ""
        SETTINGS.out.print(f"{row.name} at {row.target_key}: forgotten{here}", markup=False)


def prune(
    run: options.RunName = None,
    host: options.Host = None,
    ct: options.Ct = None,
    keep: Annotated[
        int,
        typer.Option(
            "--keep",
            help="So many of the newest complete checkpoints stay, and attempts whose logs are copied here.",
            min=1,
        ),
    ] = 2,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Remove old checkpoints of a run, and the copies here of its old attempts' logs; the newest stay.

    Examples:

        dflashctl prune b32 --keep 1
    """
    with opened_record() as record:
        row = find_run(record, run, host, ct)
        copies = copies_of(record, row, keep=keep)
    site = site_of(row)
    try:
        _remove(site, row, "checkpoints", keep, copies, yes=yes, as_json=as_json)
    finally:
        site.close()
