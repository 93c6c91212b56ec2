"""tmux by libtmux: our own server (`-L dflashctl`, no configuration file), one session a run.

The pane is for looking; nothing is decided by it. Names in `-t` are exact (`=name`).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.guest.refusal import TMUX_HINT, Refusal

if TYPE_CHECKING:
    from pathlib import Path

    from libtmux import Server

SOCKET = "dflashctl"
HISTORY_LINES = "200000"
TAG = "@dflashctl_run_dir"
ENDING = "server exited unexpectedly"
QUERY_LIMIT_S = 2.0
NO_SERVER = ("no server running", "No such file or directory", "Connection refused", "no sessions")


@dataclass(frozen=True)
class Pane:
    """The active pane of a session: its last lines, its process, and whether that has ended."""

    pid: int | None
    is_dead: bool
    lines: tuple[str, ...]


def name_for(run: str) -> str:
    """The session's name: the run's, with what tmux forbids (`.` and `:`) replaced."""
    return re.sub(r"[.:]", "_", run)


def start(run: str, run_dir: Path, command: list[str]) -> str:
    """Start `command` in a new session, replacing the run's old one; returns the session's name.

    The history limit is fixed when a pane is created, so it is set before, in the same tmux call.

    Raises:
        Refusal: `no_tmux`, or `start_failed` with tmux's own words.
    """
    server = _server(SOCKET)
    name = name_for(run)
    if _tag(server, name) != str(run_dir) and _exists(server, name):
        # another state directory has a run of this name
        name = f"{name}-{hashlib.sha256(str(run_dir).encode()).hexdigest()[:6]}"
    # A server ends with its last session, and one that is ending takes the new session with it.
    server.cmd("set-option", "-s", "exit-empty", "off", ";", "kill-session", "-t", f"={name}")
    steps = [
        ["set-option", "-g", "history-limit", HISTORY_LINES],
        ["set-option", "-g", "remain-on-exit", "on"],
        ["new-session", "-d", "-s", name, "-x", "200", "-y", "50", "-c", "/", *command],
        ["set-option", "-t", name, TAG, str(run_dir)],
        ["set-option", "-s", "exit-empty", "on"],
    ]
    words = [word for step in steps for word in [";", *step]]
    answer = server.cmd("start-server", *words)
    if answer.returncode != 0 and ENDING in " ".join(answer.stderr):  # by somebody else's last session
        answer = server.cmd("start-server", *words)
    if answer.returncode != 0:
        raise Refusal("start_failed", f"tmux: {' '.join(answer.stderr) or answer.returncode}")
    return name


def kill(run: str, run_dir: Path) -> None:
    """End the run's session, if it is the run's."""
    if shutil.which("tmux") is None:
        return
    server = _server(SOCKET)
    for name in (name_for(run), f"{name_for(run)}-{hashlib.sha256(str(run_dir).encode()).hexdigest()[:6]}"):
        if _tag(server, name) == str(run_dir):
            server.cmd("kill-session", "-t", f"={name}")


def tags() -> set[str] | None:
    """The run directories that have a session; None if tmux could not be asked, which proves nothing.

    By subprocess, not libtmux: a stuck tmux server must not stick the watch.
    """
    command = ["tmux", f"-L{SOCKET}", "-f/dev/null", "list-sessions", "-F", f"#{{{TAG}}}"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=QUERY_LIMIT_S,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0 and not any(words in answer.stderr for words in NO_SERVER):
        return None
    return set(answer.stdout.splitlines())


def capture(name: str, socket: str | None, num_lines: int) -> Pane | None:
    """Return the active pane of a session with its last `num_lines`; None if there is no such session.

    After a death the screen has scrolled into the history, so both are read.

    Raises:
        Refusal: `no_tmux`.
    """
    server = _server(socket)
    target = f"={name}:"
    about = server.cmd("display-message", "-p", "-t", target, "#{pane_pid} #{pane_dead} #{session_name}")
    fields = about.stdout[0].split(" ", 2) if about.returncode == 0 and about.stdout else []
    if len(fields) != 3 or fields[2] != name:
        return None
    text = server.cmd("capture-pane", "-p", "-J", "-S", "-", "-t", target)
    lines = [line.rstrip() for line in text.stdout]
    while lines and not lines[-1]:
        lines.pop()
    pid = int(fields[0]) if fields[0].isdigit() else None
    return Pane(pid, fields[1] == "1", tuple(lines[-num_lines:]))


def _server(socket: str | None) -> Server:
    from libtmux import Server  # a watch asks for tags only, and must not wait for this

    if shutil.which("tmux") is None:
        raise Refusal("no_tmux", "there is no tmux in the container", TMUX_HINT)
    for name in ("TMUX", "TMUX_PANE"):  # as if called from outside, whoever calls
        os.environ.pop(name, None)
    # Only our own server is free of the person's configuration.
    return Server(socket_name=socket, config_file="/dev/null" if socket == SOCKET else None)


def _exists(server: Server, name: str) -> bool:
    return server.cmd("has-session", "-t", f"={name}").returncode == 0


def _tag(server: Server, name: str) -> str | None:
    from libtmux.exc import LibTmuxException

    try:
        answer = server.cmd("show-options", "-v", "-t", f"={name}:", TAG)
    except LibTmuxException:
        return None
    return answer.stdout[0] if answer.returncode == 0 and answer.stdout else None
