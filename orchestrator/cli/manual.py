"""man: the manual's pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator import __version__
from orchestrator.cli.context import SETTINGS, counted
from orchestrator.errors import NotFound, OrchestratorError
from orchestrator.terminal import one_line


def register(app: typer.Typer) -> None:
    """Add this file's verb."""
    app.command("man", rich_help_panel="Look")(man)


def man(
    context: typer.Context,
    verb: Annotated[
        list[str] | None, typer.Argument(help="The verb whose page it is; default the program's own.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write every page into this folder instead.")
    ] = None,
) -> None:
    """Print a page of the manual, for `man -l -`, or write them all into a folder of your MANPATH.

    Examples:

        dflashctl man | man -l -
        dflashctl man playbook show | man -l -
        dflashctl man --out ~/.local/share/man/man1
    """
    from orchestrator.cli.manpage import pages

    root = context.find_root()
    name = "dflashctl"
    found = pages(root.command, name, __version__, root.command.epilog or "")
    if out is not None:
        _write(out, found)
        SETTINGS.err.print(f"{counted(len(found), 'page')} in {out}", markup=False)
        return
    page = "-".join([name, *(verb or [])]) + ".1"
    if page not in found:
        raise NotFound(
            f"no page for {one_line(' '.join(verb or []))!r}",
            hint="`dflashctl man --out DIR` writes them all",
        )
    typer.echo(found[page], nl=False)


def _write(folder: Path, found: dict[str, str]) -> None:
    """Write the pages.

    Raises:
        OrchestratorError: The folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in found.items():
            (folder / name).write_text(text, encoding="ascii")
    except OSError as error:
        raise OrchestratorError(
            f"{error.filename or folder}: cannot be written: {error.strerror}", hint="give another --out"
        ) from error
