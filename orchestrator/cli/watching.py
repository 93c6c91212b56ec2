"""watch: follow runs, say what happens, and act as the playbook says."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.context import SETTINGS, find_run, load_playbook, opened_record, print_json
from orchestrator.cli.mirrored import keeper
from orchestrator.cli.notifying import messaging
from orchestrator.cli.reaching import connect_options, operator, resolve_target, site_at, site_of
from orchestrator.cli.viewing import check_playbooks, is_terminal, view
from orchestrator.errors import Exit, NotFound
from orchestrator.launch import DEFAULT_RUN
from orchestrator.terminal import clean
from orchestrator.types.failure import RunState
from orchestrator.types.seen import Present

if TYPE_CHECKING:
    from orchestrator.connection import ShellOptions
    from orchestrator.mirror import Keeper
    from orchestrator.record import Record, RunRow
    from orchestrator.site import Site
    from orchestrator.view.live import LiveSink
    from orchestrator.view.plain import JsonSink, PlainSink
    from orchestrator.watch.loop import Watched

_CAPTURE_LINES = 2000


def register(app: typer.Typer) -> None:
    """Add this file's verbs."""
    app.command(rich_help_panel="Look")(watch)


def watch_rows(
    record: Record,
    rows: Sequence[RunRow],
    *,
    as_json: bool = False,
    playbook: Path | None = None,
    acting: bool = True,
    show_log: bool = True,
    telling: bool = True,
    mirroring: bool = True,
    options_: ShellOptions | None = None,
) -> Exit:
    """Watch until every run has ended; return the exit code.

    Raises:
        PlaybookError: None of the runs has a playbook that can be used.
        ConfigError: The settings of messages or of the mirror are wrong, or others may read the former.
        RecordError: The record cannot be written.
    """
    from orchestrator.fleet import Ways
    from orchestrator.playbook import shipped
    from orchestrator.view.live import LiveSink
    from orchestrator.view.plain import JsonSink, PlainSink
    from orchestrator.watch.loop import Watched

    read = functools.cache(load_playbook)
    ways = Ways(
        site=lambda row: site_of(row, options_),
        playbook=lambda row: read(playbook or row.playbook),
        shipped=lambda: read(shipped()),
    )
    check_playbooks(rows, ways.playbook)
    mirror = keeper(record, wanted=mirroring)
    # Runs at one target share its connection and its stream.
    sites: dict[str, Site] = {}
    watched = []
    for row in rows:
        site = sites.setdefault(row.target_key, site_of(row, options_))
        book, remark = ways.usable(row)
        watched.append(Watched(row, site, book, host=site, remark=remark))
    many = len(rows) > 1
    console = SETTINGS.out
    if console.is_terminal and not as_json:
        with LiveSink(console, SETTINGS.clock, show_log=show_log, many=many) as live:
            return _follow(watched, record, live, acting=acting, telling=telling, mirror=mirror)
    view = (
        JsonSink(sys.stdout, show_log=show_log)
        if as_json
        else PlainSink(sys.stdout, show_log=show_log, many=many)
    )
    return _follow(watched, record, view, acting=acting, telling=telling, mirror=mirror)


def _follow(
    watched: Sequence[Watched],
    record: Record,
    view: JsonSink | PlainSink | LiveSink,
    *,
    acting: bool,
    telling: bool,
    mirror: Keeper | None,
) -> Exit:
    from orchestrator.view.live import LiveSink
    from orchestrator.watch.loop import Watcher

    with messaging(view, [each.row for each in watched], wanted=telling) as sink:
        watcher = Watcher(watched, record, sink or view, SETTINGS.clock, acting=acting, mirror=mirror)
        if isinstance(view, LiveSink):
            view.attach(watcher)
        if sink is not None:
            sink.attach(watcher)
        return watcher.run()


def watch(
    run: options.RunName = None,
    host: options.Host = None,
    ct: options.Ct = None,
    container: options.ContainerName = None,
    user: options.User = None,
    port: options.Port = None,
    identity: options.Identity = None,
    known_hosts: options.KnownHosts = None,
    accept_new_host_key: options.AcceptKey = False,
    state_dir: options.StateDir = None,
    playbook: options.Playbook = None,
    act: Annotated[
        bool, typer.Option("--act/--observe-only", help="Relaunch by the playbook, or only look and say.")
    ] = True,
    log: Annotated[bool, typer.Option("--log/--no-log", help="Show the trainer's own lines.")] = True,
    notify: Annotated[
        bool, typer.Option("--notify/--no-notify", help="Send messages, where `notify show` names whom.")
    ] = True,
    mirror: Annotated[
        bool, typer.Option("--mirror/--no-mirror", help="Keep a copy of the logs here, for `logs --local`.")
    ] = True,
    session: Annotated[
        str | None,
        typer.Option("--session", help="Look at a tmux session that dflashctl did not start; never acts."),
    ] = None,
    lines: Annotated[
        bool,
        typer.Option("--lines", help="Lines that scroll instead of the view that fills the screen."),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Follow runs: output, GPUs, failures with their proof; relaunch by the playbook. Alone: every run.

    On a terminal it fills the screen: ? shows its keys, q ends the watch. Into
    a pipe, and with --lines, it is a line an event.

    Ends when each run has finished (0), was stopped (3), needs a person (12, 13),
    or failed under --observe-only (10, 11). Ctrl-C ends the watch and nothing
    else.

    Examples:

        dflashctl watch
        dflashctl watch dflash --observe-only
        dflashctl watch --lines
        dflashctl watch --host 10.1.2.6 --ct 200 --json
        dflashctl watch --host 10.1.2.6 --ct 200 --session dflash
    """
    connect = connect_options(accept_new_host_key=accept_new_host_key)
    login = {"user": user, "port": port, "identity": identity, "state_dir": state_dir}
    if session is not None:
        target = resolve_target(host=host, ct=ct, container=container, known_hosts=known_hosts, **login)
        raise typer.Exit(_watch_session(site_at(target, connect), session, as_json=as_json))
    with opened_record() as record:
        rows = _rows(record, run, host, ct, container, known_hosts, login, connect, playbook)
        if is_terminal() and not (as_json or lines):
            code = view(
                record, verb="watch", rows=rows, playbook=playbook, acting=act, show_log=log, telling=notify,
                mirroring=mirror, options_=connect,
            )  # fmt: skip
        else:
            code = watch_rows(
                record, rows, as_json=as_json, playbook=playbook, acting=act, show_log=log, telling=notify,
                mirroring=mirror, options_=connect,
            )  # fmt: skip
    raise typer.Exit(code)


def _rows(
    record: Record,
    run: str | None,
    host: str | None,
    ct: int | None,
    container: str | None,
    known_hosts: Path | None,
    login: Mapping[str, object],
    connect: ShellOptions,
    playbook: Path | None,
) -> list[RunRow]:
    from orchestrator.fleet.roster import OVER, is_cut

    if host is None and ct is None and container is None:
        if run:
            return [find_run(record, run)]
        known = record.runs()
        rows = [row for row in known if row.state not in OVER or is_cut(record, row)]
        if not known:
            raise NotFound("no run in the record", hint="start one with `dflashctl launch`")
        if not rows:
            raise NotFound(
                "no run to watch: every run in the record has ended", hint="`dflashctl ps` lists them"
            )
        return rows
    target = resolve_target(host=host, ct=ct, container=container, known_hosts=known_hosts, **login)
    known = [row for row in record.runs() if row.target_key == target.key and run in (None, row.name)]
    if known:
        return known
    # Another machine's run, or a lost record: the container itself says what runs there.
    site = site_at(target, connect)
    try:
        book = str(playbook.resolve()) if playbook else None
        return [operator(site, record).adopt(run or DEFAULT_RUN, book)]
    finally:
        site.close()


def _watch_session(site: Site, session: str, *, as_json: bool) -> Exit:
    """Look once at a foreign session: its scrollback, its GPUs, and a diagnosis of lower confidence."""
    from orchestrator.classify import LogScanner, diagnose_pane
    from orchestrator.observe.parse import gpus
    from orchestrator.view.live import gpu_text

    try:
        request = {"session": session, "socket": None, "lines": _CAPTURE_LINES}
        messages = site.client().call("capture", request, timeout_s=30.0)
    finally:
        site.close()
    capture = next(message for message in messages if message["type"] == "capture")
    if not capture["exists"]:
        raise NotFound(
            f"{site.target_key}: no tmux session {session!r} there",
            hint="`tmux ls` in the container lists them",
        )
    lines = [str(line) for line in capture["lines"]]
    scanner = LogScanner(truncated=True)
    scanner.feed("\n".join(lines).encode() + b"\n", 0)
    diagnosis = diagnose_pane(scanner.reading(), is_dead=bool(capture["dead"]))
    reading = next((gpus(message) for message in messages if message["type"] == "gpu"), None)
    seen = [gpu_text(gpu) for gpu in reading.value] if isinstance(reading, Present) else []
    if as_json:
        print_json(
            {
                "session": session,
                "dead": capture["dead"],
                "failure": diagnosis.failure.value if diagnosis.failure else None,
                "summary": diagnosis.summary,
                "confidence": diagnosis.confidence,
                "gpus": seen,
                "lines": lines[-50:],
            }
        )
    else:
        out = SETTINGS.out
        for line in lines[-30:]:
            out.print(f"  | {clean(line)}", markup=False)
        out.print("  ".join(seen) or "GPUs: none could be read", markup=False)
        out.print(
            f"{session}: {diagnosis.summary} (from {len(lines)} lines of a pane; "
            f"confidence {diagnosis.confidence:.0%}; "
            "dflashctl did not start it and will not touch it)",
            markup=False,
        )
    if diagnosis.state is RunState.DEAD:
        return Exit.FAILED
    return Exit.OK
