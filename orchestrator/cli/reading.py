"""logs and attach: the trainer's own output."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import options
from orchestrator.cli.context import SETTINGS, find_run, opened_record, target_of
from orchestrator.cli.locallogs import Wanted, copied_lines, hint, print_local
from orchestrator.cli.loglines import LineFilter, LogPrinter, Tail, since_fields, since_remark
from orchestrator.cli.mirrored import mirror_of
from orchestrator.cli.reaching import known_options, site_of, with_login
from orchestrator.errors import BlindError, ConfigError, GuestRefused, NotFound, OrchestratorError
from orchestrator.wire import unpack_bytes

if TYPE_CHECKING:
    from orchestrator.connection import GuestStream
    from orchestrator.mirror import RunMirror
    from orchestrator.record import Record, RunRow
    from orchestrator.wire import Message

DEFAULT_TAIL_BYTES = 64 << 10


def register(app: typer.Typer) -> None:
    """Add this file's verbs."""
    for verb in (logs, attach):
        app.command(rich_help_panel="Look")(verb)


def logs(
    run: options.RunName = None,
    host: options.Host = None,
    ct: options.Ct = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it grows.")] = False,
    tail: Annotated[
        str | None,
        typer.Option(
            "--tail",
            "-n",
            metavar="LINES|SIZE",
            help="Lines from the end, or a size such as 64KiB; 0 is all; default 64KiB, or all with --since, "
            "--grep and --rank, which choose among these.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            help="From then on: 10m (ago), 19:30, 2026-11-29T19:30, with Z or +01:00 if it is not this "
            "machine's zone. By the dates in the log's lines, else by its steps and their times in "
            "metrics.jsonl.",
        ),
    ] = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", help="Which attempt; default the newest.", min=1)
    ] = None,
    previous: Annotated[bool, typer.Option("--previous", help="The attempt before the newest.")] = False,
    rank: Annotated[
        int | None,
        typer.Option(
            "--rank",
            help="Only this rank's lines, where the launcher marked them, as torchrun --tee 3 does.",
            min=0,
        ),
    ] = None,
    grep: Annotated[
        str | None,
        typer.Option(
            "--grep", "-g", help="Only lines that match; as a playbook's `regex`, (?i) for any case."
        ),
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="From the copy that a watch keeps here; connects to nothing.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="The bytes as they are, control sequences included.")
    ] = False,
) -> None:
    """Print the trainer's own output, from the container; on a terminal in its own colours.

    `--local` prints the copy that `watch` keeps on this machine, and connects to
    nothing; its --since goes by when the watch saw the lines.

    Examples:

        dflashctl logs -f -n 50
        dflashctl logs b32 --attempt 1 --tail 0 | less -R
        dflashctl logs b32 --previous --grep "Error|OutOfMemory"
        dflashctl logs b32 -f --since 10m --rank 3
        dflashctl logs b32 --local
    """
    if previous and attempt is not None:
        raise ConfigError("--previous and --attempt name two attempts", hint="give one of them")
    chosen = LineFilter.of(grep, rank)
    chooses = since is not None or chosen.is_any
    end = Tail.of(tail) if tail is not None else Tail(size=None if chooses else DEFAULT_TAIL_BYTES)
    begin = since_fields(since, SETTINGS.clock.now()) if since is not None else {}
    wanted = Wanted(attempt=attempt, previous=previous, since=begin, tail=end, follow=follow)
    with opened_record() as record:
        row = find_run(record, run, host, ct)
        mirror, known = mirror_of(record, row), [each.n for each in record.attempts(row.id)]
    printer = LogPrinter(chosen, sys.stdout, raw=raw, colour=SETTINGS.has_colour)
    if local:
        try:
            print_local(mirror, wanted, known, printer, _remark)
        except NotFound as error:
            raise NotFound(f"{row.name} at {row.target_key}: {error.message}", hint=error.hint) from error
    else:
        _print_far(row, wanted, printer, mirror)
    printer.finish()
    _remark(chosen.remark())


def _print_far(row: RunRow, wanted: Wanted, printer: LogPrinter, mirror: RunMirror) -> None:
    """Print it from the container; where that cannot be, say that there is a copy."""
    request: dict[str, Any] = {
        "attempt": wanted.attempt,
        "previous": wanted.previous,
        "follow": wanted.follow,
    }
    lines, size = wanted.tail
    request["offset"] = 0 if lines is None and size is None else None
    request.update({"last_lines": lines, "last_bytes": size})
    request.update(wanted.since)
    site = site_of(row)
    try:
        stream = site.client().watch({**request, "state_dir": site.state_dir, "run": row.name}, verb="tail")
        while (message := _next(stream)) is not None and message["type"] in ("log", "since"):
            if message["type"] == "since":
                _remark(since_remark(message["by"], follows=wanted.follow))
            else:
                printer.write(unpack_bytes(message["data"]))
    except GuestRefused as refusal:
        if refusal.reason != "not_found":
            raise
        if wanted.attempt is None or wanted.attempt in mirror.attempts:
            _remark(hint(mirror, row.name))
        told = f"`dflashctl events {row.name}` tells its attempts"
        raise NotFound(refusal.message, hint=told) from refusal
    except BlindError:
        _remark(hint(mirror, row.name))
        raise
    finally:
        site.close()


def _remark(text: str | None) -> None:
    if text is not None:
        SETTINGS.err.print(f"dflashctl: {text}", markup=False)


def _next(stream: GuestStream) -> Message | None:
    """Return the next message, pinging meanwhile; None at the end."""
    from orchestrator.observe.stream import PING_EVERY_S

    message = stream.read(PING_EVERY_S)
    while message is None and not stream.is_ended:
        stream.send("ping", {})
        message = stream.read(PING_EVERY_S)
    return message


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
        argv = session_argv(record, row, checked=not dry_run)
    if dry_run:
        SETTINGS.out.print(shlex.join(argv), markup=False)
        return
    try:
        os.execvp(argv[0], argv)
    except FileNotFoundError as error:
        raise OrchestratorError(
            f"{argv[0]} is not on this machine", hint=f"install it, or run: {shlex.join(argv)}"
        ) from error


def session_argv(record: Record, row: RunRow, *, checked: bool = True) -> tuple[str, ...]:
    """Return what enters the run's tmux session: ssh, that trusts the host keys the program itself would.

    Without `checked` nothing is reached, and ssh judges by the known_hosts files alone.

    Raises:
        BlindError: The host cannot be reached, or its key is not the one it must have.
        ConfigError: The ssh config is not readable.
        RecordError: The record cannot be read.
    """
    from orchestrator.connection import attach_argv, checked_config
    from orchestrator.places import ssh_path

    attempts = record.attempts(row.id)
    session = (attempts[-1].session if attempts else None) or row.name
    target = target_of(row)
    config = checked_config(target, ssh_path(record.path), known_options(target)) if checked else None
    return attach_argv(with_login(target), session, config)


def last_lines(record: Record, row: RunRow) -> list[str]:
    """Return the end of the newest attempt's log; from the copy here if the container cannot be asked.

    Raises:
        BlindError: It could not be looked at, and there is no copy.
        GuestRefused: There is none, and no copy either.
    """
    try:
        return _far_lines(row)
    except (BlindError, GuestRefused) as error:
        copied = copied_lines(mirror_of(record, row), DEFAULT_TAIL_BYTES)
        if not copied:
            raise
        return [f"(its log cannot be read now: {error})", *copied]


def _far_lines(row: RunRow) -> list[str]:
    """Return the end of the newest attempt's log, from the container.

    Raises:
        BlindError: It could not be looked at.
        GuestRefused: There is none.
    """
    site = site_of(row)
    try:
        request = {
            "state_dir": site.state_dir, "run": row.name, "attempt": None, "offset": None,
            "last_bytes": DEFAULT_TAIL_BYTES, "follow": False,
        }  # fmt: skip
        messages = site.client().call("tail", request, timeout_s=30.0)
    finally:
        site.close()
    data = b"".join(unpack_bytes(each["data"]) for each in messages if each["type"] == "log")
    return data.decode("utf-8", "replace").splitlines()
