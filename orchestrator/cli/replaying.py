"""replay: the reader, the classifier and the playbook over what was recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.context import SETTINGS, load_playbook, print_json
from orchestrator.errors import ConfigError, NotFound
from orchestrator.terminal import one_line, plain

if TYPE_CHECKING:
    from orchestrator.replay.judge import Judgement

CHUNK_BYTES = 1 << 20


def register(app: typer.Typer) -> None:
    """Add this file's verb."""
    app.command(rich_help_panel="Look")(replay)


def replay(
    log: Annotated[
        Path | None, typer.Option("--log", help="One bare log or a pane's text; - is standard input.")
    ] = None,
    exit_status: Annotated[
        int | None,
        typer.Option(
            "--exit-status", help="What the shell said of its end, 137 for SIGKILL; left out: not known."
        ),
    ] = None,
    width: Annotated[
        int | None,
        typer.Option("--width", help="The pane's columns; wrapped lines are joined.", min=20, max=10_000),
    ] = None,
    playbook: options.Playbook = None,
    as_json: options.Json = False,
) -> None:
    """Say what a recorded log shows, with the line that proves it, and what the playbook would do.

    Nothing is connected to and nothing is done. A bare log says less than a run: whether its program still
    lives is known only from an exit status.

    Examples:

        dflashctl replay --log pane.txt --width 120 --json
        dflashctl replay --log train.log --exit-status 137
    """
    if log is None:
        raise ConfigError("nothing to replay", hint="give --log FILE")
    from orchestrator.replay.judge import judge_chunks

    rules = load_playbook(playbook)
    found = judge_chunks(read_chunks(log), exit_status=exit_status, width=width, playbook=rules)
    if as_json:
        print_json(found.to_json())
    else:
        _print(found)


def read_chunks(path: Path) -> Iterator[bytes]:
    """Return a file's bytes, or those of standard input for `-`.

    Raises:
        NotFound: There is no such file.
        ConfigError: It is no file, or it cannot be read.
    """
    if str(path) == "-":
        while chunk := sys.stdin.buffer.read(CHUNK_BYTES):
            yield chunk
        return
    name = one_line(str(path))
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except FileNotFoundError as error:
        raise NotFound(f"{name}: no such file") from error
    except IsADirectoryError as error:
        raise ConfigError(
            f"{name}: a folder; --log takes one file", hint=f"recorded attempts: `dflashctl replay {name}`"
        ) from error
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror or error}") from error


def _print(found: Judgement) -> None:
    out = SETTINGS.out
    body = found.to_json()
    sure = f"confidence {body['confidence']:.0%}"
    out.print(f"{body['state']}: {body['class']} ({body['title']}), {sure}", markup=False)
    out.print(f"  {plain(body['summary'])}", markup=False)
    shown = found.evidence
    if shown is not None:
        where = f" byte {shown.offset}" if shown.offset is not None else ""
        rank = f", rank {shown.rank}" if shown.rank is not None else ""
        out.print(f"  {shown.role.value} ({shown.source}{where}{rank}): {plain(shown.text)}", markup=False)
    if body["also"]:
        out.print(f"  it may also be: {', '.join(body['also'])}", markup=False)
    decision = body["decision"]
    out.print(f"  playbook: {decision['kind']}. {decision['reason']}", markup=False)
    for change in decision["changes"]:
        kind = "set" if "set" in change else "env"
        out.print(f"    {kind} {change[kind]}={plain(change['value'])}", markup=False)
