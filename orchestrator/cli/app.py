"""The application: its verbs, its help, and the one place where an error becomes a line and an exit code."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from orchestrator import __version__
from orchestrator.cli import (
    changing,
    demo,
    inventory,
    launching,
    looking,
    reading,
    telling,
    tidying,
    watching,
)
from orchestrator.cli.context import SETTINGS
from orchestrator.errors import Exit, OrchestratorError
from orchestrator.terminal import clean

EPILOG = (
    "Exit codes: 0 done, 1 error, 2 usage, 3 not running, 4 unreachable (says nothing about the run), "
    "5 record, 10 run failed, 11 hung, 12 gave up, 13 needs a person, 14 not ready, 15 already running, "
    "20 not found, 130 interrupted."
)

app = typer.Typer(
    name="dflashctl",
    help="Launch DFlash drafter training in a Proxmox container, know within a second that it died and why, "
    "and bring it back.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _version(*, value: bool) -> None:
    if value:
        typer.echo(f"dflashctl {__version__}")
        raise typer.Exit


@app.callback()
def _globals(
    inventory_dir: Annotated[
        Path | None,
        typer.Option(
            "--inventory", envvar="DFLASHCTL_INVENTORY", help="Inventory folder; default ./inventory."
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option("--record", envvar="DFLASHCTL_RECORD", help="The record's SQLite file."),
    ] = None,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="Say more; -vv says most.")] = 0,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colour; NO_COLOR does the same.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=lambda value: _version(value=value), is_eager=True)
    ] = False,
) -> None:
    del version
    SETTINGS.inventory, SETTINGS.record = inventory_dir, record
    SETTINGS.verbose, SETTINGS.no_color = verbose, no_color
    levels = {0: logging.ERROR, 1: logging.INFO}
    logging.basicConfig(
        level=levels.get(verbose, logging.DEBUG),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    # paramiko tells of every dropped connection with a traceback; our own line says it better.
    logging.getLogger("paramiko").setLevel(logging.CRITICAL if verbose < 2 else logging.DEBUG)


launching.register(app)
changing.register(app)
watching.register(app)
looking.register(app)
reading.register(app)
telling.register(app)
tidying.register(app)
demo.register(app)
app.add_typer(inventory.app, name="inventory")


def _tell(error: OrchestratorError) -> None:
    if "--json" in sys.argv:
        body = {
            "error": {"code": error.code, "message": error.message, "hint": error.hint},
            "schema_version": 1,
        }
        sys.stdout.write(json.dumps(body) + "\n")
    else:
        sys.stderr.write(f"dflashctl: {clean(str(error))}\n")


def main() -> None:
    """Run the command line; never returns."""
    try:
        app()
    except OrchestratorError as error:
        _tell(error)
        code = error.exit_code
    except SystemExit as ending:
        if not isinstance(ending.__context__, typer.Abort):
            raise
        sys.stderr.write("dflashctl: interrupted; what runs was not touched\n")
        code = Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`| head`); the interpreter must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = Exit.OK
    sys.exit(int(code))
