"""The options that verbs share, each written once. Letters mean the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli import completing
from orchestrator.durations import ALLOWED, parse_duration
from orchestrator.errors import ConfigError

WHERE = "Where"
OUTPUT = "Output"

Host = Annotated[
    str | None,
    typer.Option(
        "--host",
        "-H",
        help="Proxmox host: an address, a name of the inventory or of ~/.ssh/config, or `local` for no ssh.",
        rich_help_panel=WHERE,
        autocompletion=completing.host_names,
    ),
]
Ct = Annotated[
    int | None,
    typer.Option(
        "--ct",
        help="Container id, as `pct list` shows it.",
        rich_help_panel=WHERE,
        autocompletion=completing.ct_ids,
    ),
]
ContainerName = Annotated[
    str | None,
    typer.Option(
        "--container",
        "-c",
        help="Container by its name in the inventory.",
        rich_help_panel=WHERE,
        autocompletion=completing.container_names,
    ),
]
User = Annotated[str | None, typer.Option("--user", "-u", help="Login on the host.", rich_help_panel=WHERE)]
Port = Annotated[int | None, typer.Option("--port", "-p", help="Port of sshd.", rich_help_panel=WHERE)]
Identity = Annotated[
    Path | None, typer.Option("--identity", "-i", help="Private key file.", rich_help_panel=WHERE)
]
KnownHosts = Annotated[
    Path | None,
    typer.Option("--known-hosts", help="Instead of ~/.ssh/known_hosts.", rich_help_panel=WHERE),
]
AcceptKey = Annotated[
    bool,
    typer.Option(
        "--accept-new-host-key",
        help="Record an unknown host key; a changed key is refused all the same.",
        rich_help_panel=WHERE,
    ),
]
StateDir = Annotated[
    str | None,
    typer.Option("--state-dir", help="Folder for runs inside the container.", rich_help_panel=WHERE),
]
OnHost = Annotated[
    bool,
    typer.Option("--on-host", help="Without a container, on a remote host itself.", rich_help_panel=WHERE),
]
RunName = Annotated[
    str | None,
    typer.Argument(
        help="The run's name; may be left out if there is only one.", autocompletion=completing.run_names
    ),
]
EntryName = Annotated[
    str | None,
    typer.Argument(
        help="A container of the inventory; default all.", autocompletion=completing.container_names
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output.", rich_help_panel=OUTPUT)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Print what would run on the host and in the container; run nothing."),
]
Playbook = Annotated[
    Path | None,
    typer.Option("--playbook", help="Playbook file or folder; default ./playbooks, then the bundled one."),
]


WatchPlaybook = Annotated[
    Path | None,
    typer.Option("--playbook", help="Playbook file or folder, as given to `watch`; default the run's own."),
]


def seconds(text: str) -> float:
    """Return the seconds of `30s`, `10m`, `2h`.

    Raises:
        ConfigError: It is none of these.
    """
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is no duration", hint=f"write {ALLOWED}") from error
