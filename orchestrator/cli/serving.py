"""serve: the watch of all runs as a service, with a dashboard, an API, metrics and a health check."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.context import SETTINGS, load_playbook, opened_record, print_json
from orchestrator.cli.mirrored import keeper
from orchestrator.cli.notifying import messaging
from orchestrator.cli.reaching import connect_options, site_of
from orchestrator.errors import ConfigError, OrchestratorError

if TYPE_CHECKING:
    from orchestrator.connection import ShellOptions
    from orchestrator.record import Record
    from orchestrator.serve.listening import Place
    from orchestrator.serve.running import Running
    from orchestrator.serve.token import Token

DEFAULT_LISTEN = "127.0.0.1:8765"
NEEDED = ("fastapi", "uvicorn", "prometheus_client")


def register(app: typer.Typer) -> None:
    """Add this file's verb."""
    app.command(rich_help_panel="Look")(serve)


def serve(
    listen: Annotated[
        str,
        typer.Option("--listen", "-l", help="ADDRESS:PORT; anywhere but on loopback all needs the token."),
    ] = DEFAULT_LISTEN,
    act: Annotated[
        bool, typer.Option("--act/--observe-only", help="Relaunch by the playbooks, or only look.")
    ] = True,
    notify: Annotated[
        bool, typer.Option("--notify/--no-notify", help="Send messages, where `notify show` names whom.")
    ] = True,
    mirror: Annotated[
        bool, typer.Option("--mirror/--no-mirror", help="Keep a copy of the logs here, for `logs --local`.")
    ] = True,
    playbook: options.WatchPlaybook = None,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", help="Where the token is; default ~/.config/dflashctl/serve.token."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="A name that browsers may call it by; can be given again."),
    ] = None,
    root_path: Annotated[
        str, typer.Option("--root-path", help="The path in front of all, where a proxy adds one.")
    ] = "",
    ready_fd: Annotated[
        int | None, typer.Option("--ready-fd", help="Write the URL to this descriptor when it serves.", min=1)
    ] = None,
    accept_new_host_key: options.AcceptKey = False,
    install_unit: Annotated[
        bool, typer.Option("--install-unit", help="Print a systemd unit for these options, and end.")
    ] = False,
    grafana: Annotated[
        bool, typer.Option("--grafana", help="Print a Grafana dashboard for its metrics, and end.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Watch all runs as a service: act by their playbooks, with a dashboard, an API, metrics, a health check.

    Reading is free on loopback; acts need the token everywhere. SIGHUP rereads
    playbooks and messages, SIGTERM and Ctrl-C end it; runs go on.

    Examples:

        dflashctl serve
        dflashctl serve --observe-only --listen 127.0.0.1:0
        dflashctl serve --listen 0.0.0.0:8765 --allow-host gpu-box.lan
        dflashctl serve --install-unit
        dflashctl serve --grafana > dflashctl-dashboard.json
    """
    _check_extra()
    if install_unit:
        from orchestrator.cli.serviceunit import unit_of

        typer.echo(unit_of(sys.argv), nl=False)
        return
    if grafana:
        from orchestrator.serve.grafana import dashboard

        typer.echo(dashboard(), nl=False)
        return
    from orchestrator.serve import listening, token

    root = _root(root_path)
    _check_fd(ready_fd)
    secret = token.load(token_file)
    listener, place = listening.listen(listening.parse(listen))
    with listener, opened_record() as record:

        def ready() -> None:
            _tell_ready(
                f"{listening.url(place)}{root}",
                secret,
                ready_fd,
                is_near=listening.is_loopback(place),
                as_json=as_json,
            )

        running = _running(
            record, place, secret, acting=act, telling=notify, mirroring=mirror, playbook=playbook,
            names=allow_host or [], root_path=root, ready=ready,
            connect=connect_options(accept_new_host_key=accept_new_host_key),
        )  # fmt: skip
        raise typer.Exit(running.run(listener))


def _check_extra() -> None:
    from importlib.util import find_spec

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise OrchestratorError(
            f"serve needs {', '.join(missing)}, which the base installation leaves out",
            hint="pip install 'dflashctl[serve]'",
        )


def _running(
    record: Record,
    place: Place,
    secret: Token,
    *,
    acting: bool,
    telling: bool,
    mirroring: bool,
    playbook: Path | None,
    names: list[str],
    root_path: str,
    ready: Callable[[], None],
    connect: ShellOptions,
) -> Running:
    import socket

    from orchestrator.fleet import Board, Ways
    from orchestrator.playbook import shipped
    from orchestrator.serve.guard import Rules
    from orchestrator.serve.listening import is_loopback
    from orchestrator.serve.making import make

    ways = Ways(
        site=lambda row: site_of(row, connect),
        playbook=lambda row: load_playbook(playbook or row.playbook),
        shipped=lambda: load_playbook(shipped()),
    )
    host = socket.gethostname().lower()
    rules = Rules(
        token=secret,
        reads_freely=is_loopback(place),
        names=frozenset({"localhost", host, socket.getfqdn().lower(), *(name.lower() for name in names)}),
        cookie=f"dflashctl-{place.port}",
    )
    return make(
        record,
        Board(SETTINGS.clock),
        SETTINGS.clock,
        ways,
        lambda row: site_of(row, connect),
        rules,
        acting=acting,
        open_messages=lambda view: messaging(view, record.runs(), wanted=telling),
        mirror=keeper(record, wanted=mirroring),
        root_path=root_path,
        ready=ready,
    )


def _tell_ready(base: str, secret: Token, fd: int | None, *, is_near: bool, as_json: bool) -> None:
    """Say where it is; a token that was made just now is shown, this once."""
    login = f"{base}/login#{secret.secret}" if secret.is_new else None
    if fd is not None:
        with os.fdopen(fd, "w") as out:
            out.write(f"{base}/\n")
    if as_json:
        told = {"url": f"{base}/", "token_file": str(secret.path), "login_url": login}
        print_json(told, in_line=True)
        sys.stdout.flush()
        return
    say = SETTINGS.out.print
    say(f"dflashctl: serving at {base}/")
    if login is not None and not _is_journal():
        say(f"log in once, to act from a browser: {login}")
        say(f"the token is kept in {secret.path} and not shown again")
    else:
        say(f"log in, to act from a browser: {base}/login; the token is in {secret.path}")
    if not is_near:
        say("others reach it in plain HTTP: a proxy in front of it can add TLS")


def _is_journal() -> bool:
    """Whether what is said goes to the journal of systemd, which keeps it for others to read."""
    out = os.fstat(1)
    return os.environ.get("JOURNAL_STREAM") == f"{out.st_dev}:{out.st_ino}"


def _root(path: str) -> str:
    """Return the path in front, as it is written before others.

    Raises:
        ConfigError: It is none.
    """
    stripped = path.strip("/")
    if stripped and not all(part.replace("-", "").replace("_", "").isalnum() for part in stripped.split("/")):
        raise ConfigError(f"--root-path: {path!r} is no path", hint="such as /dflashctl")
    return f"/{stripped}" if stripped else ""


def _check_fd(fd: int | None) -> None:
    try:
        if fd is not None:
            os.fstat(fd)
    except OSError as cause:
        raise ConfigError(
            f"--ready-fd: {fd} is not open", hint="it is inherited from who starts it"
        ) from cause
