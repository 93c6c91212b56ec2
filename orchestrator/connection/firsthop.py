"""Where the way to a host begins, by inventory and ssh config. Nothing is reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from orchestrator.connection import sshconfig

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orchestrator.inventory import Host


class FirstHop(NamedTuple):
    """What this machine itself connects to; `via` names it if it is not the host."""

    address: str
    port: int
    via: str | None = None
    is_command: bool = False


def first_hop(host: Host, jumps: Sequence[Host] = (), ssh_config: Path | None = None) -> FirstHop:
    """Return the first hop of the way; a ProxyCommand is the whole way, and only it knows where it leads.

    Raises:
        ConfigError: The ssh config is not readable.
    """
    base = sshconfig.load(ssh_config).base_ssh_config
    begin = jumps[0] if jumps else host
    via = begin.address if jumps else None
    says = base.lookup(begin.address)
    for _ in range(8):  # a jump of the ssh config may have one of its own
        jump = says.get("proxyjump", "none")
        if jump.lower() != "none":
            user_host, _, port = jump.split(",")[0].rpartition(":")
            name = (user_host or jump.split(",")[0]).rpartition("@")[2].strip("[]")
            via, says = name, dict(base.lookup(name))
            if user_host and port.isdigit():
                says["port"] = port
            begin = host.model_copy(update={"address": name, "port": None})
            continue
        command = says.get("proxycommand", "none")
        if command.lower() != "none":
            return FirstHop(begin.address, 22, command.split()[0], is_command=True)
        break
    port_said = int(says.get("port", 22))
    return FirstHop(says.get("hostname", begin.address), begin.port or port_said, via)
