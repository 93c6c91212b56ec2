"""Where the service listens: the address as it was typed, and the socket, or why there is none."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from dataclasses import dataclass

from orchestrator.errors import ConfigError, OrchestratorError

DEFAULT = "127.0.0.1:8765"
DEFAULT_PORT = 8765
BACKLOG = 512
_HOW = "write ADDRESS:PORT, such as 127.0.0.1:8765 or [::1]:8765; port 0 takes a free one"
_WHY = {
    errno.EADDRINUSE: ("the port is taken", "give another --listen, or stop what listens there: `ss -ltnp`"),
    errno.EADDRNOTAVAIL: ("that is no address of this machine", "`ip -brief address` lists them"),
    errno.EACCES: ("this user may not listen there", "ports below 1024 are root's; give a higher one"),
    errno.EPERM: ("this user may not listen there", "give another --listen"),
}


@dataclass(frozen=True)
class Place:
    """An address and a port to listen at."""

    host: str
    port: int

    @property
    def text(self) -> str:
        """As it is typed, and stands in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse(text: str) -> Place:
    """Return the place that is meant; the port may be left out.

    Raises:
        ConfigError: It is none.
    """
    host, port = _split(text.strip())
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"--listen: {text!r} is no address and port", hint=_HOW)
    return Place(host, int(port))


def _split(text: str) -> tuple[str, str]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if bracket and not rest:
            return host, str(DEFAULT_PORT)
        return host, rest[1:] if rest.startswith(":") else ""
    if text.count(":") > 1:  # an IPv6 address alone
        return text, str(DEFAULT_PORT)
    host, colon, port = text.partition(":")
    return host, port if colon else str(DEFAULT_PORT)


def listen(place: Place) -> tuple[socket.socket, Place]:
    """Return a listening socket, and where it really is.

    Raises:
        ConfigError: There is no such name or address here.
        OrchestratorError: The port is taken, or may not be used.
    """
    try:
        found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as cause:
        raise ConfigError(f"--listen: {place.host!r}: there is no such name or address", hint=_HOW) from cause
    family, kind, protocol, _, address = found[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError as cause:
        made.close()
        said = os.strerror(cause.errno) if cause.errno is not None else str(cause)
        why, hint = _WHY.get(cause.errno or 0, (said, "give another --listen"))
        raise OrchestratorError(f"{place.text}: {why}", hint=hint) from cause
    name = made.getsockname()
    return made, Place(str(name[0]), int(name[1]))


def is_loopback(place: Place) -> bool:
    """Whether only this machine reaches it."""
    try:
        return ipaddress.ip_address(place.host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def url(place: Place) -> str:
    """Return where a browser on this machine finds it."""
    try:
        is_any = ipaddress.ip_address(place.host).is_unspecified
    except ValueError:
        is_any = False
    return f"http://{(Place(socket.gethostname(), place.port) if is_any else place).text}"
