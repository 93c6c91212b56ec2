"""The first steps of the way, taken by this machine itself: the name, the port, the banner."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.connection.firsthop import first_hop
from orchestrator.doctor.readings import Hop
from orchestrator.terminal import one_line

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.inventory import Target

TCP_S = 4.0
BANNER_S = 2.0


def hop_of(target: Target, ssh_config: Path | None = None) -> Hop | None:
    """Return the first hop, its name looked up and its port tried; None for this machine.

    Raises:
        ConfigError: The ssh config is not readable.
    """
    if target.host is None:
        return None
    step = first_hop(target.host, target.jumps, ssh_config)
    hop = Hop(name=step.address, port=step.port, via=step.via, is_command=step.is_command)
    if hop.is_command:
        return hop
    try:
        found = socket.getaddrinfo(hop.name, hop.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return replace(hop, resolve_error=getattr(error, "strerror", None) or str(error))
    hop = replace(hop, addresses=tuple(dict.fromkeys(str(each[4][0]) for each in found)))
    return _tried(hop)


def _tried(hop: Hop) -> Hop:
    started = time.monotonic()
    try:
        with socket.create_connection((hop.name, hop.port), timeout=TCP_S) as link:
            took = time.monotonic() - started
            return replace(hop, tcp_s=took, banner=_banner(link))
    except TimeoutError:
        return replace(hop, tcp_error=f"no answer within {TCP_S:g} s")
    except OSError as error:
        text = error.strerror or str(error)
        return replace(hop, tcp_error=text[:1].lower() + text[1:])


def _banner(link: socket.socket) -> str | None:
    """Return sshd's first line; None if none came in time."""
    link.settimeout(BANNER_S)
    try:
        return one_line(link.recv(256).split(b"\n")[0].decode("utf-8", "replace"), 80).strip() or None
    except OSError:
        return None
