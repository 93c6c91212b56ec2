"""What a verb needs to begin: the options before it, the record, the inventory, the playbook, the run."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.clock import SystemClock
from orchestrator.errors import ConfigError, NotFound, PlaybookError
from orchestrator.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from orchestrator.inventory import Inventory, Target
    from orchestrator.playbook import Playbook
    from orchestrator.record import Record, RunRow


@dataclass
class Settings:
    """Options given before the verb."""

    inventory: Path | None = None
    record: Path | None = None
    verbose: int = 0
    no_color: bool = False
    clock: SystemClock = field(default_factory=SystemClock)
    interrupted: str = ""
    """What a verb says of its end by Ctrl-C; typer keeps nothing of the exception itself."""

    @property
    def out(self) -> Console:
        """Standard output, for what was asked for."""
        return self._console(is_err=False)

    @property
    def err(self) -> Console:
        """Standard error, for progress and remarks."""
        return self._console(is_err=True)

    @property
    def has_colour(self) -> bool:
        """Whether colours reach a person: a terminal that has some, and nobody who wants none."""
        out = self.out
        return out.is_terminal and out.color_system is not None and not out.no_color

    def _console(self, *, is_err: bool) -> Console:
        """A console that prints texts as they are: `[x]` in a log is no style, `a.py:100:` no picture."""
        from rich.console import Console

        colourless = self.no_color or None
        return Console(
            stderr=is_err, no_color=colourless, highlight=False, soft_wrap=True, markup=False, emoji=False
        )


SETTINGS = Settings()
MAX_REMARK = 500


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


def playbook_of(row: RunRow) -> Playbook:
    """Return a run's playbook for a look at it; the shipped one, with a remark, if its own cannot be used."""
    from orchestrator.playbook import shipped

    try:
        return load_playbook(row.playbook)
    except PlaybookError as error:
        remark = f"{row.name}: its playbook cannot be used, so the shipped one is shown"
        SETTINGS.err.print(one_line(f"{remark}: {error.message}", MAX_REMARK), markup=False)
        return load_playbook(shipped())


@contextmanager
def opened_record() -> Iterator[Record]:
    """The record, closed afterwards."""
    from orchestrator.record import Record

    record = Record.open(SETTINGS.record)
    try:
        yield record
    finally:
        record.close()


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
