"""The systemd unit that runs the service for a user."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNIT = """\
# Keeps the watch of all runs going. As root: save it as /etc/systemd/system/dflashctl.service, then
#   systemctl daemon-reload && systemctl enable --now dflashctl
# As a user: ~/.config/systemd/user/dflashctl.service without the line User=, then
#   systemctl --user daemon-reload && systemctl --user enable --now dflashctl; loginctl enable-linger
[Unit]
Description=dflashctl: watches training runs and serves their dashboard
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
NotifyAccess=main
User={user}
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
WatchdogSec=60
TimeoutStartSec=60
TimeoutStopSec=60
Restart=on-failure
RestartSec=5
# A wrong setting does not get right by itself.
RestartPreventExitStatus=2
UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectSystem=full
ProtectControlGroups=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectClock=yes
ProtectHostname=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native

[Install]
WantedBy={wanted_by}
"""


def unit(argv: Sequence[str], user: str) -> str:
    """Return the unit's text; `argv` starts the service, its first word is absolute."""
    return _UNIT.format(
        command=" ".join(_quoted(word) for word in argv), user=_escaped(user), wanted_by="multi-user.target"
    )


def _quoted(word: str) -> str:
    """Return a word as ExecStart= reads it: `%` and `$` are special there, quotes and backslashes as in C."""
    word = _escaped(word).replace("$", "$$")
    if word and shlex.quote(word) == word:
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _escaped(word: str) -> str:
    return word.replace("%", "%%")
