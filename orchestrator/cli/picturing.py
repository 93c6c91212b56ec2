"""plot, report: the curves of a run, and its whole story on one page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.context import SETTINGS, find_run, load_playbook, opened_record, playbook_of, print_json
from orchestrator.errors import ConfigError
from orchestrator.terminal import one_line

FORMATS = ("png", "svg", "terminal")
SUFFIXES = (".png", ".svg")


def register(app: typer.Typer) -> None:
    """Add this file's verbs."""
    for verb in (plot, report):
        app.command(rich_help_panel="Look")(verb)


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

    A PNG needs matplotlib; an SVG and the terminal need nothing. What lies
    far off the rest, as the first losses do, is cut off with a note.

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


def report(
    run: options.RunName = None,
    host: options.Host = None,
    ct: options.Ct = None,
    out: Annotated[
        str, typer.Option("--out", "-o", help="The HTML file, - is standard output; default <run>.html.")
    ] = "",
    attempt: Annotated[int | None, typer.Option("--attempt", help="Only this attempt's story.")] = None,
    playbook: options.WatchPlaybook = None,
    as_json: options.Json = False,
) -> None:
    """Write what happened to a run as one HTML page, to be forwarded.

    Attempts, diagnoses with their proof, decisions and how they went, curves,
    GPUs at the deaths, what changed between attempts. The page asks for no
    other file and runs no script; secrets are starred out.

    Examples:

        dflashctl report
        dflashctl report b32 --out b32.html
        dflashctl report b32 --attempt 2
    """
    from orchestrator.plot import save_file
    from orchestrator.report import collect, page

    with opened_record() as record:
        row = find_run(record, run, host, ct)
        book = load_playbook(playbook) if playbook else playbook_of(row)
        found = collect(record, row, book, SETTINGS.clock.now(), attempt)
    text = page(found)
    if out == "-" and not as_json:
        sys.stdout.write(text)
        return
    if out == "-":
        raise ConfigError(
            "--out -: the page and --json cannot both go to standard output", hint="name a file"
        )
    path = save_file(Path(out or f"{row.name}.html"), text.encode(), "report")
    if as_json:
        body = {"run": row.name, "path": str(path), "bytes": len(text.encode()), "summary": found.summary}
        print_json({**body, "attempts": [each.number for each in found.attempts]})
        return
    SETTINGS.out.print(str(path), markup=False)
