"""OpenSSH's own ssh, held to the host keys that the program's own connection found right.

ssh knows nothing of the inventory's `host_key`, and asks where it knows no key. So the way is gone once by
the checked connection, and ssh gets what that saw: a known_hosts file and an ssh config of its own.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.connection.route import Login, Route, ShellOptions
from orchestrator.connection.sshconfig import SYSTEM
from orchestrator.connection.translate import translating
from orchestrator.errors import OrchestratorError

if TYPE_CHECKING:
    from orchestrator.inventory import Target

# A config rather than options: ssh hands it on to the ssh of every jump host. The first value counts.
_CONFIG = """\
UserKnownHostsFile "{known_hosts}"
GlobalKnownHostsFile /dev/null
StrictHostKeyChecking yes
CheckHostIP no
UpdateHostKeys no
{theirs}
"""


def checked_config(target: Target, folder: Path, options: ShellOptions | None = None) -> Path | None:
    """Reach the target's host, its keys checked; return an ssh config that trusts these keys alone.

    None for this machine. The files lie in `folder`, private, one pair a way; the next time replaces them.

    Raises:
        HostKeyRefused: A hop's key is unknown, has changed, or is not the inventory's.
        HostUnreachable, HostDenied: The host cannot be reached, or refuses the login.
        ConfigError: The ssh config is not readable.
        OrchestratorError: The files cannot be written.
    """
    if target.host is None:
        return None
    options = options or ShellOptions()
    login = Login(host=target.host, jumps=target.jumps, known_hosts=target.known_hosts, options=options)
    with translating(login.name):
        route = Route(login)
        try:
            route.open()
        finally:
            route.shut()
    name = hashlib.sha256(repr(login).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        known_hosts, config = folder / f"{name}.known_hosts", folder / f"{name}.config"
        _replace(known_hosts, route.known_hosts)
        _replace(config, _config_text(known_hosts, options.ssh_config))
    except OSError as cause:
        raise OrchestratorError(
            f"{folder}: what ssh is to trust cannot be written: {cause.strerror}"
        ) from cause
    return config


def _config_text(known_hosts: Path, ssh_config: Path | None) -> str:
    theirs = ["~/.ssh/config", str(SYSTEM)] if ssh_config is None else [str(ssh_config)]
    shown = str(known_hosts).replace("%", "%%")
    return _CONFIG.format(known_hosts=shown, theirs="\n".join(f'Include "{path}"' for path in theirs))


def _replace(path: Path, text: str) -> None:
    """Write it whole or not at all: another ssh may be reading it."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".", delete=False) as file:  # is 0600
        file.write(text)
    Path(file.name).replace(path)
