"""The application: its verbs, its help, and the one place where an error becomes a line and an exit code."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from orchestrator import __version__
from orchestrator.cli import (
    caching,
    changing,
    comparing,
    configuring,
    demo,
    doctoring,
    evaluating,
    exporting,
    inventory,
    launching,
    looking,
    manual,
    notifying,
    picturing,
    playbooks,
    provisioning,
    reading,
    recording,
    replaying,
    ruling,
    serving,
    stacking,
    telling,
    tidying,
    viewing,
    watching,
)
from orchestrator.cli.context import SETTINGS
from orchestrator.cli.suggesting import suggestion
from orchestrator.errors import Exit, OrchestratorError
from orchestrator.terminal import one_line

NAME = "dflashctl"
_MAX_ERROR = 2000
# typer uses click or a copy of its own, by its version: this is the UsageError of either.
_USAGE: type[typer.BadParameter] = typer.BadParameter.__mro__[1]

EPILOG = (
    "Exit codes: 0 done, 1 error, 2 usage, 3 not running, 4 unreachable (says nothing about the run), "
    "5 record, 10 run failed, 11 hung, 12 gave up, 13 needs a person, 14 not ready, 15 still alive, "
    "20 not found, 130 interrupted."
)

app = typer.Typer(
    name=NAME,
    help="Launch DFlash drafter training in a Proxmox container, know within a second that it died and why, "
    "and bring it back.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode="rich",  # markdown would run the examples together into one paragraph
    pretty_exceptions_enable=False,
)


def _version(context: typer.Context, *, value: bool) -> None:
    if value and not context.resilient_parsing:  # as at a Tab
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
        bool,
        typer.Option(
            "--version",
            callback=lambda ctx, value: _version(ctx, value=value),
            is_eager=True,
            help="Print the version.",
        ),
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
    for handler in logging.getLogger().handlers:
        handler.addFilter(is_no_interrupt)
    # paramiko tells of every dropped connection with a traceback; our own line says it better.
    logging.getLogger("paramiko").setLevel(logging.CRITICAL if verbose < 2 else logging.DEBUG)


def is_no_interrupt(entry: logging.LogRecord) -> bool:
    """Whether a log entry is not a library's traceback of a Ctrl-C, which it raises again for us to tell."""
    return not (entry.exc_info and isinstance(entry.exc_info[1], KeyboardInterrupt))


launching.register(app)
provisioning.register(app)
changing.register(app)
watching.register(app)
viewing.register(app)
serving.register(app)
looking.register(app)
reading.register(app)
stacking.register(app)
doctoring.register(app)
telling.register(app)
picturing.register(app)
exporting.register(app)
evaluating.register(app)
comparing.register(app)
replaying.register(app)
recording.register(app)
tidying.register(app)
demo.register(app)
manual.register(app)
app.add_typer(caching.app, name="cache", rich_help_panel="Take")
app.add_typer(playbooks.app, name="playbook")
app.add_typer(ruling.app, name="rules")
app.add_typer(notifying.app, name="notify")
app.add_typer(inventory.app, name="inventory")
app.add_typer(configuring.app, name="config")


def run(words: list[str] | None = None) -> int:
    """Run the command line and return its exit code; every error is one line on standard error."""
    asked = sys.argv[1:] if words is None else words
    SETTINGS.interrupted = ""
    try:
        code = app(asked, prog_name=NAME, standalone_mode=False)
        sys.stdout.flush()
    except OrchestratorError as error:
        _tell(asked, error.code, error.message, error.hint)
        return int(error.exit_code)
    except _USAGE as error:
        return _usage(asked, error)
    except (KeyboardInterrupt, typer.Abort):
        code = Exit.INTERRUPTED
    except BrokenPipeError:
        return _reader_left()
    except SystemExit as ending:
        if not isinstance(ending.__context__, BrokenPipeError):
            raise
        return _reader_left()
    if code == Exit.INTERRUPTED:
        said = SETTINGS.interrupted or "what runs in a container goes on"
        _tell(asked, "interrupted", f"interrupted; {said}", None)
    return int(code or Exit.OK)


def _tell(asked: list[str], code: str, message: str, hint: str | None) -> None:
    """Say it in one line, or as an object to a program; what came out of a container cannot act on either."""
    words = asked[: asked.index("--")] if "--" in asked else asked
    if "--json" in words:
        body = {"error": {"code": code, "message": message, "hint": hint}, "schema_version": 1}
        sys.stdout.write(json.dumps(body) + "\n")
        sys.stdout.flush()
        return
    # Of several things that are wrong in a file each has a line of its own.
    parts = [line.strip() for line in message.splitlines() if line.strip()]
    sys.stderr.write(f"{NAME}: {one_line('; '.join([*parts, *([hint] if hint else [])]), _MAX_ERROR)}\n")


def _usage(asked: list[str], error: typer.BadParameter) -> int:
    """A command line that cannot be read: one line with the value, and where the help is."""
    path = error.ctx.command_path if error.ctx is not None else NAME
    message = error.format_message().rstrip(".")
    if type(error).__name__ == "NoArgsIsHelpError":
        # Nothing was asked for: the help is the answer, and some versions of typer have printed it by now.
        sys.stderr.write(f"{message}\n" if message else "")
        return int(Exit.USAGE)
    cause = error.__cause__ or error.__context__
    if isinstance(cause, ValueError) and hasattr(cause, "errors"):
        message += f": {cause.errors()[0].get('input')!r}"  # pydantic, by typer, says what but not the value
    hint = f"see `{path} --help`"
    if (better := suggestion(error, asked)) is not None:
        message, hint = better[0], better[1] or hint
    verb = path.removeprefix(NAME).strip()
    _tell(asked, "usage_error", f"{verb}: {message}" if verb else message, hint)
    return int(Exit.USAGE)


def _reader_left() -> int:
    """The reader of our output went away (`| head`): no fault, and nothing to complain of at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(null, stream.fileno())
    return int(Exit.OK)


def main() -> None:
    """Run the command line; never returns."""
    sys.exit(run())
