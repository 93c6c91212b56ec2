"""Command lines for people: what a verb runs there, and how to enter a tmux session. Opens nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.connection.guest import GuestClient
from orchestrator.connection.opening import open_shell

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orchestrator.inventory import Host, Target

TMUX_SOCKET = "dflashctl"  # as orchestrator.guest.session has it


def ssh_argv(target: Target, *, tty: bool = False, config: Path | None = None) -> tuple[str, ...]:
    """Return OpenSSH's own command line to the target's host; empty for this machine.

    `config` is an ssh config that says which keys to trust, as `checked_config` writes it.
    """
    host = target.host
    if host is None:
        return ()
    argv = ["ssh"]
    if tty:
        argv += ["-t", *(("-o", "StrictHostKeyChecking=yes") if config is None else ())]
    if host.port is not None:
        argv += ["-p", str(host.port)]
    if host.identity is not None:
        argv += ["-i", host.identity]
    if config is not None:
        argv += ["-F", str(config)]
    elif target.known_hosts is not None:
        argv += ["-o", f"UserKnownHostsFile={target.known_hosts}"]
    if target.jumps:
        argv += ["-J", ",".join(_jump(jump) for jump in target.jumps)]
    return (*argv, _login(host))


def _login(host: Host) -> str:
    return f"{host.user}@{host.address}" if host.user else host.address


def _jump(host: Host) -> str:
    return f"{_login(host)}:{host.port}" if host.port else _login(host)


def remote_argv(target: Target, argv: Sequence[str]) -> tuple[str, ...]:
    """Return what runs on the host for `argv` at the target: the way into the container before it."""
    if target.ct is None:
        return tuple(argv)
    return (*(target.become or ()), "pct", "exec", str(target.ct), "--", *argv)


def dry_run_lines(target: Target, verbs: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return the exact command lines of guest verbs, as they would be typed; the requests go in on stdin."""
    client = GuestClient(open_shell(target), target)
    return tuple((*ssh_argv(target), *remote_argv(target, client.argv(verb))) for verb in verbs)


def attach_argv(target: Target, session: str, config: Path | None = None) -> tuple[str, ...]:
    """Return the command line that enters a run's tmux session with a terminal; `config` as in `ssh_argv`."""
    inner = (
        "env",
        "LC_ALL=C.UTF-8",
        "TERM=xterm-256color",
        "tmux",
        "-L",
        TMUX_SOCKET,
        "attach",
        "-t",
        f"={session}",
    )
    return (*ssh_argv(target, tty=True, config=config), *remote_argv(target, inner))
