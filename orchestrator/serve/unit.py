"""The systemd unit that runs the service for a user."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_UNIT = """\
# Keeps the watch of all runs going. As root: save it as /etc/systemd/system/dflashctl.service, then
#   systemctl daemon-reload && systemctl enable --now dflashctl
# As a user: ~/.config/systemd/user/dflashctl.service without the line User= and with WantedBy=default.target
#   systemctl --user daemon-reload && systemctl --user enable --now dflashctl; loginctl enable-linger
[Unit]
Description=dflashctl: watches training runs and serves their dashboard
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
NotifyAccess=main
User={user}
WorkingDirectory={folder}
{environment}ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
WatchdogSec=60
TimeoutStartSec=60
TimeoutStopSec=60
Restart=on-failure
RestartSec=5
# A wrong setting does not get right by itself.
RestartPreventExitStatus=2
UMask=0077
LockPersonality=yes
{confinement}
[Install]
WantedBy=multi-user.target
"""
_CONFINED = (
    "NoNewPrivileges=yes",
    "PrivateTmp=yes",
    "PrivateDevices=yes",
    "ProtectSystem=full",
    "ProtectControlGroups=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=yes",
    "ProtectClock=yes",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "SystemCallArchitectures=native",
)
_FAR = """\
# Every run on record is reached by ssh, so the service needs nothing of this machine. It enters containers of
# this machine (--host local) or starts runs on it only without these lines.
{lines}
"""
_NEAR = """\
# It may start a run on this machine, in tmux, or enter its containers: such a run outlives the service, and
# has the rights and the devices that the service has.
KillMode=process
# Where every run is reached by ssh, these are better than the line above:
{lines}
"""


def unit(argv: Sequence[str], user: str, *, folder: str, env: Mapping[str, str], is_far: bool) -> str:
    """Return the unit's text; `argv` starts the service in `folder`, its first word is absolute.

    `is_far`: no run lives on this machine itself, so that the service can be confined.
    """
    lines = "\n".join(_CONFINED if is_far else (f"# {line}" for line in _CONFINED))
    confinement = (_FAR if is_far else _NEAR).format(lines=lines)
    command = " ".join(_quoted(word) for word in argv)
    return _UNIT.format(
        command=command,
        user=_escaped(user),
        folder=_escaped(folder),
        environment="".join(f"Environment={_set(name, value)}\n" for name, value in env.items()),
        confinement=confinement,
    )


def _set(name: str, value: str) -> str:
    """Return an assignment as Environment= reads it: `$` has no meaning there."""
    return '"' + _escaped(f"{name}={value}").replace("\\", "\\\\").replace('"', '\\"') + '"'


def _quoted(word: str) -> str:
    """Return a word as ExecStart= reads it: `%` and `$` are special there, quotes and backslashes as in C."""
    word = _escaped(word).replace("$", "$$")
    if word and shlex.quote(word) == word:
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _escaped(word: str) -> str:
    return word.replace("%", "%%")
