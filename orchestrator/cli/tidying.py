"""rm and prune: remove ended runs and old checkpoints, with sizes told first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import options
from orchestrator.cli.context import SETTINGS, confirm, counted, find_run, opened_record, print_json
from orchestrator.cli.reaching import site_of
from orchestrator.errors import RunAlive
from orchestrator.sizes import size_text
from orchestrator.terminal import plain

if TYPE_CHECKING:
    from orchestrator.record import RunRow
    from orchestrator.site import Site


def register(app: typer.Typer) -> None:
    """Add this file's verbs."""
    app.command(rich_help_panel="Tidy")(rm)
    app.command(rich_help_panel="Tidy")(prune)


def _remove(
    site: Site, row: RunRow, what: str, keep: int, *, yes: bool, as_json: bool, cache: bool = False
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
    total = sum(item["bytes"] for item in items)
    if not as_json:
        for item in items:
            SETTINGS.out.print(f"  {size_text(item['bytes']):>10}  {plain(item['path'])}", markup=False)
        kept = [item for item in sizes["items"] if item.get("kept")] if what == "run" else []
        for item in kept:
            SETTINGS.out.print(f"  {size_text(item['bytes']):>10}  {plain(item['path'])} stays", markup=False)
    if not items:
        if not as_json:
            SETTINGS.out.print(f"{row.name} at {row.target_key}: nothing to remove", markup=False)
        return
    confirm(f"remove {counted(len(items), 'folder')}, {size_text(total)}, at {row.target_key}?", yes=yes)
    (removed,) = site.client().call("remove", request, timeout_s=600.0)
    if as_json:
        print_json(
            {"run": row.name, "target": row.target_key, "bytes": removed["bytes"], "items": removed["items"]}
        )
    else:
        SETTINGS.out.print(
            f"{row.name} at {row.target_key}: {size_text(removed['bytes'])} removed", markup=False
        )


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

    Its compile cache stays there, for a run of the same name, unless --cache is
    given.

    Examples:

        dflashctl rm b32
        dflashctl rm b32 --forget --yes
    """
    with opened_record() as record:
        row = find_run(record, run, host, ct)
        if not forget:
            site = site_of(row)
            try:
                _remove(site, row, "run", 0, yes=yes, as_json=as_json, cache=cache)
            finally:
                site.close()
        record.remove_run(row.id, SETTINGS.clock.now())
    if forget and not as_json:
        SETTINGS.out.print(f"{row.name} at {row.target_key}: forgotten", markup=False)


def prune(
    run: options.RunName = None,
    host: options.Host = None,
    ct: options.Ct = None,
    keep: Annotated[
        int, typer.Option("--keep", help="How many of the newest complete checkpoints stay.", min=1)
    ] = 2,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Remove old checkpoints of a run; the newest complete ones stay.

    Examples:

        dflashctl prune b32 --keep 1
    """
    with opened_record() as record:
        row = find_run(record, run, host, ct)
    site = site_of(row)
    try:
        _remove(site, row, "checkpoints", keep, yes=yes, as_json=as_json)
    finally:
        site.close()
