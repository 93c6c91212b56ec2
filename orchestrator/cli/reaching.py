"""The way to a container: which one is meant, how to connect, and what is seen of what is sent there."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.context import SETTINGS, load_inventory, target_of
from orchestrator.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.connection import ShellOptions
    from orchestrator.connection.guest import Progress as Report
    from orchestrator.inventory import Target
    from orchestrator.operate import Operator
    from orchestrator.record import Record, RunRow
    from orchestrator.site import Site

ACCEPT = "--accept-new-host-key"


def resolve_target(
    *,
    host: str | None = None,
    ct: int | None = None,
    container: str | None = None,
    known_hosts: Path | None = None,
    **options: Any,  # noqa: ANN401  # the fields of inventory.Overrides
) -> Target:
    """Return the target that the options mean.

    Raises:
        ConfigError: Options contradict each other, or say too little.
        NotFound: No such name in the inventory.
    """
    from orchestrator.inventory import resolve

    return resolve(
        load_inventory(),
        host=host,
        ct=ct,
        container=container,
        known_hosts=str(known_hosts) if known_hosts else None,
        **_plain(options),
    )


def check_container(target: Target, host: str | None, otherwise: str, *, on_host: bool) -> None:
    """See that a remote host itself is meant where no container is named; `otherwise`: what would happen.

    Raises:
        ConfigError: Nobody said so.
    """
    if target.host is not None and target.ct is None and not on_host:
        raise ConfigError(
            f"--host {host}: no container is named, and {otherwise}",
            hint="give --ct ID (`pct list` shows them), or --on-host if you mean it",
        )


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: str(value) if isinstance(value, Path) else value for key, value in options.items()}


def site_of(row: RunRow, connect: ShellOptions | None = None) -> Site:
    """Return the way to a run's container."""
    return site_at(target_of(row), connect)


def site_at(target: Target, connect: ShellOptions | None = None) -> Site:
    """Return the way to a place; connects to nothing yet."""
    from orchestrator.site import Site

    return Site(target, connect or known_options(target))


def operator(site: Site, record: Record) -> Operator:
    """Return who does what a person asks, at one site."""
    from orchestrator.operate import Operator

    return Operator(site, record, SETTINGS.clock)


def connect_options(*, accept_new_host_key: bool) -> ShellOptions:
    """Return how to connect; an unknown key's message quotes what to type to accept it."""
    from orchestrator.connection import ShellOptions

    typed = sys.argv[1:]
    place = typed.index("--") if "--" in typed else len(typed)
    typed.insert(place, ACCEPT)
    return ShellOptions(accept_new_host_key=accept_new_host_key, accept_command=_quoted(typed))


def known_options(target: Target) -> ShellOptions:
    """Return how verbs connect that take the place from record or inventory, and have no option for keys."""
    from orchestrator.connection import ShellOptions

    host = target.host
    if host is None:
        return ShellOptions()
    words = ["inventory", "scan", "--host", host.address]
    pairs = (("--user", host.user), ("--port", host.port), ("--identity", host.identity))
    for option, value in (*pairs, ("--known-hosts", target.known_hosts)):
        words += [option, str(value)] if value is not None else []
    return ShellOptions(accept_command=_quoted([*words, ACCEPT]))


def _quoted(words: Sequence[str]) -> str:
    """Return the command as it is to be typed, the way this program was started."""
    name = Path(sys.argv[0]).name
    start = [sys.executable, "-m", "orchestrator"] if name == "__main__.py" else [name]
    return f"`{shlex.join([*start, *words])}`"


def with_login(target: Target) -> Target:
    """Return the target with the login that is really used; OpenSSH by hand would take one's own name.

    Raises:
        ConfigError: The ssh config is not readable.
    """
    if target.host is None or target.host.user is not None:
        return target
    from orchestrator.connection import sshconfig

    config = sshconfig.load()
    user = config.base_ssh_config.lookup(target.host.address).get("user") or "root"
    return replace(target, host=target.host.model_copy(update={"user": user}))


@contextmanager
def push_progress(what: str) -> Iterator[Report]:
    """A bar for what is being sent; silent where standard error is no terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    with Progress(
        TextColumn(what),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=SETTINGS.err,
        disable=not SETTINGS.err.is_terminal,
        transient=True,
    ) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
