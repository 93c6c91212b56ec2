"""What a verb needs to begin: the record, the inventory, the playbook, and the way to a container."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.clock import SystemClock
from orchestrator.errors import ConfigError, NotFound
from orchestrator.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from orchestrator.connection import ShellOptions
    from orchestrator.inventory import Inventory, Target
    from orchestrator.operate import Operator
    from orchestrator.playbook import Playbook
    from orchestrator.record import Record, RunRow
    from orchestrator.site import Site


@dataclass
class Settings:
    """Options given before the verb."""

    inventory: Path | None = None
    record: Path | None = None
    verbose: int = 0
    no_color: bool = False
    clock: SystemClock = field(default_factory=SystemClock)

    @property
    def out(self) -> Console:
        """Standard output, for what was asked for."""
        return self._console(is_err=False)

    @property
    def err(self) -> Console:
        """Standard error, for progress and remarks."""
        return self._console(is_err=True)

    def _console(self, *, is_err: bool) -> Console:
        """A console that prints texts as they are: `[x]` in a log is no style, `a.py:100:` no picture."""
        from rich.console import Console

        colourless = self.no_color or None
        return Console(
            stderr=is_err, no_color=colourless, highlight=False, soft_wrap=True, markup=False, emoji=False
        )


SETTINGS = Settings()
ACCEPT = "--accept-new-host-key"


def load_inventory() -> Inventory:
    """Return the inventory in use.

    Raises:
        InventoryError: A file of it is wrong.
    """
    from orchestrator import inventory

    return inventory.Inventory.load(inventory.find(SETTINGS.inventory))


def load_playbook(path: str | Path | None) -> Playbook:
    """Return the playbook in use.

    Raises:
        PlaybookError: It is wrong.
    """
    from orchestrator.playbook import load

    return load(Path(path) if path else None)


@contextmanager
def opened_record() -> Iterator[Record]:
    """The record, closed afterwards."""
    from orchestrator.record import Record

    record = Record.open(SETTINGS.record)
    try:
        yield record
    finally:
        record.close()


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


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: str(value) if isinstance(value, Path) else value for key, value in options.items()}


def find_run(record: Record, name: str | None, host: str | None = None, ct: int | None = None) -> RunRow:
    """Return the run meant: by name, or the only one there is.

    Raises:
        NotFound: None is.
        ConfigError: More than one is.
    """
    rows = [row for row in record.runs() if _is_at(row, host, ct)]
    if name is not None:
        named = [row for row in rows if row.name == name]
        if not named:
            known = ", ".join(sorted({row.name for row in rows})) or "none"
            raise NotFound(
                f"no run {one_line(name)!r} in the record", hint=f"runs: {known}; `dflashctl ps` lists them"
            )
        rows = named
    if not rows:
        raise NotFound("no run in the record", hint="start one with `dflashctl launch`")
    if len(rows) > 1:
        where = ", ".join(f"{row.name} at {row.target_key}" for row in rows)
        raise ConfigError(f"more than one run is meant: {where}", hint="name it, or give --host and --ct")
    return rows[0]


def _is_at(row: RunRow, host: str | None, ct: int | None) -> bool:
    target = target_of(row)
    names = {target.host_key, "local" if target.host is None else target.host.name}
    if target.host is not None:
        names.add(target.host.address)
    return (host is None or host in names) and (ct is None or target.ct == ct)


def target_of(row: RunRow) -> Target:
    """Return where a run lives."""
    from orchestrator.inventory import Target

    return Target.from_json(row.target)


def site_of(row: RunRow, connect: ShellOptions | None = None) -> Site:
    """Return the way to a run's container."""
    return site_at(target_of(row), connect)


def site_at(target: Target, connect: ShellOptions | None = None) -> Site:
    """Return the way to a place; connects to nothing yet."""
    from orchestrator.site import Site

    return Site(target, connect or _known_options(target))


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


def _known_options(target: Target) -> ShellOptions:
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
    from dataclasses import replace

    if target.host is None or target.host.user is not None:
        return target
    from orchestrator.connection import sshconfig

    config = sshconfig.load()
    user = config.base_ssh_config.lookup(target.host.address).get("user") or "root"
    return replace(target, host=target.host.model_copy(update={"user": user}))


def print_json(body: Mapping[str, Any], *, in_line: bool = False) -> None:
    """Write one object to standard output; in one line where a stream of such lines follows."""
    indent = None if in_line else 2
    sys.stdout.write(json.dumps({"schema_version": 1, **body}, indent=indent, default=str) + "\n")


def confirm(question: str, *, yes: bool) -> None:
    """Ask, unless told not to.

    Raises:
        ConfigError: There is nobody to ask, or the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{question}: standard input is no terminal to ask at", hint="give --yes")
    SETTINGS.err.print(f"{question} [y/N] ", end="", markup=False)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError("not done: the answer was no")


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return the number with its noun: `1 host`, `2 hosts`."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def age_text(at: datetime) -> str:
    """Return how long ago that was."""
    seconds = int((SETTINGS.clock.now() - at).total_seconds())
    return (
        f"{seconds} s"
        if seconds < 120
        else f"{seconds // 60} min"
        if seconds < 7200
        else f"{seconds // 3600} h"
    )
