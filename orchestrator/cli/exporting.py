"""export: the finished drafter, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.context import SETTINGS, counted, find_run, opened_record, print_json
from orchestrator.cli.reaching import push_progress, site_of
from orchestrator.sizes import size_text


def register(app: typer.Typer) -> None:
    """Add this file's verb."""
    app.command(rich_help_panel="Take")(export)


def export(
    run: options.RunName = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="The folder to make; default ./<run>-drafter.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the drafter in that folder.")] = False,
    host: options.Host = None,
    ct: options.Ct = None,
    as_json: options.Json = False,
) -> None:
    """Pull the finished drafter, checked by sha256, and say how to serve it.

    The folder appears when all of it is whole. Interrupted, the same command goes
    on where it was cut.

    Examples:

        dflashctl export
        dflashctl export b32 --to ./drafters/b32
    """
    with opened_record() as record:
        row = find_run(record, run, host, ct)
    from orchestrator import exported

    place = (to or Path(f"{row.name}-drafter")).expanduser().absolute()
    exported.require_free(place, force=force)
    site = site_of(row)
    try:
        with push_progress(f"pulling {row.name}") as progress:
            found = exported.export(site.client(), row.name, place, force=force, progress=progress)
    finally:
        site.close()
    vllm, sglang = exported.serving_lines(found.path, found.block_size)
    total = sum(file.size for file in found.files)
    if as_json:
        print_json(
            {
                "run": row.name,
                "target": row.target_key,
                "path": str(found.path),
                "bytes": total,
                "block_size": found.block_size,
                "tensors": found.num_tensors,
                "files": [{"path": f.path, "bytes": f.size, "sha256": f.sha256} for f in found.files],
                "serve": {"vllm": vllm, "sglang": sglang},
            }
        )
        return
    out = SETTINGS.out
    out.print(
        f"{found.path}: {counted(len(found.files), 'file')}, {size_text(total)}, "
        f"{counted(found.num_tensors, 'tensor')}, sha256 as in the container",
        markup=False,
    )
    out.print(f"serve it with vLLM:   {vllm}", markup=False)
    out.print(f"serve it with SGLang: {sglang}", markup=False)
