"""logs and attach: the trainer's own output."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import options
from orchestrator.cli.context import SETTINGS, find_run, opened_record, target_of
from orchestrator.cli.reaching import site_of, with_login
from orchestrator.errors import GuestRefused, NotFound, OrchestratorError
from orchestrator.terminal import clean, plain
from orchestrator.wire import unpack_bytes

if TYPE_CHECKING:
    from orchestrator.connection import GuestStream
    from orchestrator.wire import Message

_MAX_LINE = 1 << 20


def register(app: typer.Typer) -> None:
    """Add this file's verbs."""
    for verb in (logs, attach):
        app.command(rich_help_panel="Look")(verb)


def logs(
    run: options.RunName = None,
    host: options.Host = None,
    ct: options.Ct = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it grows.")] = False,
    tail: Annotated[int, typer.Option("--tail", "-n", help="Kilobytes from the end; 0 is all.", min=0)] = 64,
    attempt: Annotated[
        int | None, typer.Option("--attempt", help="Which attempt; default the newest.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="The bytes as they are, control sequences included.")
    ] = False,
) -> None:
    """Print the trainer's own output, from the container.

    Examples:

        dflashctl logs -f
        dflashctl logs b32 --attempt 1 --tail 0 | less -R
    """
    with opened_record() as record:
        row = find_run(record, run, host, ct)
    site = site_of(row)
    request: dict[str, Any] = {
        "state_dir": "",
        "run": row.name,
        "attempt": attempt,
        "offset": None,
        "follow": follow,
    }
    request.update({"offset": 0, "last_bytes": 0} if tail == 0 else {"last_bytes": tail * 1024})
    pending = b""
    try:
        request["state_dir"] = site.state_dir
        stream = site.client().watch(request, verb="tail")
        while (message := _next(stream)) is not None and message["type"] == "log":
            pending = _write_log(pending + unpack_bytes(message["data"]), raw=raw)
        if pending:
            _write_log(pending + b"\n", raw=raw)
    except GuestRefused as refusal:
        if refusal.reason != "not_found":
            raise
        raise NotFound(refusal.message, hint=f"`dflashctl events {row.name}` tells its attempts") from refusal
    finally:
        site.close()


def _next(stream: GuestStream) -> Message | None:
    """Return the next message, pinging meanwhile; None at the end."""
    from orchestrator.observe.stream import PING_EVERY_S

    message = stream.read(PING_EVERY_S)
    while message is None and not stream.is_ended:
        stream.send("ping", {})
        message = stream.read(PING_EVERY_S)
    return message


def _write_log(data: bytes, *, raw: bool) -> bytes:
    """Write whole lines and return the rest; what comes out of a container is hostile."""
    if raw:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return b""
    *lines, rest = data.split(b"\n")
    if len(rest) > _MAX_LINE:  # a line that never ends would be kept for ever
        lines, rest = [*lines, rest], b""
    colour = sys.stdout.isatty() and not SETTINGS.out.no_color
    for line in lines:
        # Of a progress bar the last state; the return before a newline is only a line's end.
        text = line.rstrip(b"\r").rsplit(b"\r", 1)[-1].decode("utf-8", "replace")
        sys.stdout.write((clean(text) if colour else plain(text)) + "\n")
    sys.stdout.flush()
    return rest


def attach(
    run: options.RunName = None,
    host: options.Host = None,
    ct: options.Ct = None,
    dry_run: options.DryRun = False,
) -> None:
    """Enter the run's tmux session; leave it with Ctrl-b d. The pane shows the log; closing it harms nothing.

    Examples:

        dflashctl attach
        dflashctl attach b32 --dry-run
    """
    with opened_record() as record:
        row = find_run(record, run, host, ct)
        attempts = record.attempts(row.id)
    session = (attempts[-1].session if attempts else None) or row.name
    from orchestrator.connection import attach_argv

    argv = attach_argv(with_login(target_of(row)), session)
    if dry_run:
        SETTINGS.out.print(shlex.join(argv), markup=False)
        return
    try:
        os.execvp(argv[0], argv)
    except FileNotFoundError as error:
        raise OrchestratorError(
            f"{argv[0]} is not on this machine", hint=f"install it, or run: {shlex.join(argv)}"
        ) from error
