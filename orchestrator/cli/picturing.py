"""plot: the curves of a run, as a picture or in the terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.context import SETTINGS, find_run, opened_record
from orchestrator.errors import ConfigError
from orchestrator.terminal import one_line

FORMATS = ("png", "svg", "terminal")
SUFFIXES = (".png", ".svg")


def register(app: typer.Typer) -> None:
    """Add this file's verbs."""
    app.command(rich_help_panel="Look")(plot)


def plot(
    run: options.RunName = None,
    host: options.Host = None,
    ct: options.Ct = None,
    out: Annotated[
        str,
        typer.Option("--out", "-o", help="png or svg, to <run>.png or <run>.svg; a file; or terminal."),
    ] = "png",
) -> None:
    """Draw loss, throughput and GPU memory across attempts, with the deaths marked.

    A PNG needs matplotlib; an SVG and the terminal need nothing. What lies far off
    the rest, as the first losses do, is cut off with a note.

    Examples:

        dflashctl plot
        dflashctl plot b32 -o terminal
        dflashctl plot b32 --out b32.svg
    """
    with opened_record() as record:
        row = find_run(record, run, host, ct)
        from orchestrator.plot import plot_run, read_curves

        if out == "terminal":
            curves = read_curves(record, row.id)
        else:
            path = plot_run(record, row.id, _picture(out, row.name))
            SETTINGS.out.print(str(path), markup=False)
            return
    from orchestrator.plot import chart

    console = SETTINGS.out
    coloured = console.is_terminal and not console.no_color
    braille = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
    for line in chart(curves, min(console.width, 160), coloured=coloured, braille=braille):
        sys.stdout.write(line + "\n")
    for note in curves.notes:
        console.print(note, markup=False)


def _picture(out: str, name: str) -> Path:
    """Return the file meant.

    Raises:
        ConfigError: Its name does not say which picture it is to be.
    """
    if out in FORMATS:
        return Path(f"{name}.{out}")
    path = Path(out)
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            f"--out {one_line(out)}: it is neither {', '.join(FORMATS)} nor a file's name that ends in "
            f"{' or '.join(SUFFIXES)}",
            hint=f"write --out {name}.png",
        )
    return path
