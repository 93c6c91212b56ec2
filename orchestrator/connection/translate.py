"""Foreign exceptions of the ssh way, translated once: paramiko's, invoke's, fabric's, and the system's.

A contract test walks their public exceptions and fails on one that is not here.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import fabric.exceptions
import invoke.config
import invoke.exceptions
import paramiko
import paramiko.hostkeys
import paramiko.pkey
import paramiko.ssh_exception

from orchestrator.errors import (
    BlindError,
    CommandTimeout,
    ConfigError,
    GuestError,
    HostDenied,
    HostKeyRefused,
    HostUnreachable,
    OrchestratorError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

# The most specific class of an exception's own line of descent wins.
TRANSLATIONS: dict[type[BaseException], type[OrchestratorError]] = {
    paramiko.SSHException: HostUnreachable,
    paramiko.AuthenticationException: HostDenied,
    paramiko.ChannelException: HostDenied,
    paramiko.BadHostKeyException: HostKeyRefused,
    paramiko.ssh_exception.IncompatiblePeer: HostDenied,
    paramiko.ConfigParseError: ConfigError,
    paramiko.CouldNotCanonicalize: HostUnreachable,
    paramiko.ProxyCommandFailure: HostUnreachable,
    paramiko.hostkeys.InvalidHostKey: HostKeyRefused,
    paramiko.pkey.UnknownKeyType: HostDenied,
    paramiko.SFTPError: BlindError,
    invoke.exceptions.Failure: GuestError,
    invoke.exceptions.CommandTimedOut: CommandTimeout,
    invoke.exceptions.AuthFailure: HostDenied,
    invoke.exceptions.ThreadException: BlindError,
    invoke.exceptions.WatcherError: BlindError,
    invoke.exceptions.SubprocessPipeError: BlindError,
    invoke.exceptions.Exit: BlindError,
    invoke.exceptions.PlatformError: ConfigError,
    invoke.exceptions.AmbiguousEnvVar: ConfigError,
    invoke.exceptions.UncastableEnvVar: ConfigError,
    invoke.exceptions.UnknownFileType: ConfigError,
    invoke.exceptions.UnpicklableConfigMember: ConfigError,
    invoke.exceptions.CollectionNotFound: ConfigError,
    invoke.exceptions.ParseError: ConfigError,
    invoke.config.AmbiguousMergeError: ConfigError,
    fabric.exceptions.NothingToDo: ConfigError,
    fabric.exceptions.InvalidV1Env: ConfigError,
    fabric.exceptions.GroupException: BlindError,
    socket.gaierror: HostUnreachable,
    TimeoutError: HostUnreachable,
    OSError: HostUnreachable,
    EOFError: HostUnreachable,
}
FOREIGN = tuple(TRANSLATIONS)

_PARAMIKO_SAYS = {
    "No existing session": "the host closed the connection during the handshake",
    "Negotiation failed.": "the host closed the connection during the handshake",
    "Error reading SSH protocol banner": "no ssh banner came: it is no sshd, or it is overloaded",
}


@contextlib.contextmanager
def translating(where: str) -> Iterator[None]:
    """Raise every foreign exception of the block as ours; `where` begins the message."""
    try:
        yield
    except OrchestratorError:
        raise
    except FOREIGN as cause:
        raise translate(cause, where) from cause


def translate(cause: BaseException, where: str) -> OrchestratorError:
    """Return our error for a foreign one."""
    found = next((TRANSLATIONS[base] for base in type(cause).__mro__ if base in TRANSLATIONS), BlindError)
    return found(f"{where}: {describe(cause)}", hint=_hint(cause))


def describe(cause: BaseException) -> str:
    """Return what happened, in one line."""
    return " ".join(_describe(cause).split()) or type(cause).__name__


def _describe(cause: BaseException) -> str:
    if isinstance(cause, paramiko.ssh_exception.NoValidConnectionsError):
        reasons = dict.fromkeys(_system(error) for error in cause.errors.values())
        ports = {str(address[1]) for address in cause.errors}
        return f"port {', '.join(sorted(ports))}: {', '.join(reasons)}"
    if isinstance(cause, paramiko.ChannelException):
        return f"sshd refused a channel: {cause.text or cause.code}"
    if isinstance(cause, paramiko.ConfigParseError):
        return f"the ssh config is not readable: {cause}"
    if isinstance(cause, socket.gaierror):
        return f"the name does not resolve: {cause.strerror}"
    if isinstance(cause, (TimeoutError, EOFError)):
        return (
            "no answer within the limit" if isinstance(cause, TimeoutError) else "the connection was closed"
        )
    if isinstance(cause, OSError):
        return _system(cause)
    return _PARAMIKO_SAYS.get(str(cause), str(cause))


def _system(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text)[:1].lower() + str(text)[1:]


def _hint(cause: BaseException) -> str | None:
    if isinstance(cause, ConnectionRefusedError) or (
        "refused" in describe(cause) and isinstance(cause, OSError)
    ):
        return "is sshd running there, and is the port right?"
    if isinstance(cause, socket.gaierror):
        return "check the address, or add the name to ~/.ssh/config"
    if isinstance(cause, paramiko.ssh_exception.IncompatiblePeer):
        return "the two sides share no algorithm; a newer OpenSSH on the host helps"
    if isinstance(cause, paramiko.ChannelException):
        return "sshd's MaxSessions may be too low"
    return None
