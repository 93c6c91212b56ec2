"""Target -> Shell: the right nesting, over shared connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.connection.container import ContainerShell
from orchestrator.connection.host import HostShell
from orchestrator.connection.local import LocalShell
from orchestrator.connection.pool import Connections
from orchestrator.connection.route import Login, ShellOptions

if TYPE_CHECKING:
    from orchestrator.connection.shell import Shell
    from orchestrator.inventory import Target

SHARED = Connections()


def open_shell(
    target: Target, *, options: ShellOptions | None = None, connections: Connections | None = None
) -> Shell:
    """Return the shell of the place where the target's runs live. Connects at its first command, not here."""
    inner = host_shell(target, options=options, connections=connections)
    return inner if target.ct is None else ContainerShell(inner, target.ct, target.become)


def host_shell(
    target: Target, *, options: ShellOptions | None = None, connections: Connections | None = None
) -> Shell:
    """Return the shell of the target's host, for `pct status` and the kernel log; shares the connection.

    Commands that need root there want `target.become` in front.
    """
    if target.host is None:
        return LocalShell()
    login = Login(
        host=target.host,
        jumps=target.jumps,
        known_hosts=target.known_hosts,
        options=options or ShellOptions(),
    )
    return HostShell(login, connections or SHARED)
