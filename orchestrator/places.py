"""Where our files are on this machine: the record, the logs' copies and the inventory, by XDG's folders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

if TYPE_CHECKING:
    from collections.abc import Mapping

RECORD_ENV = "DFLASHCTL_RECORD"
SUFFIXES = (".yaml", ".yml")


def record_path() -> Path:
    """Return DFLASHCTL_RECORD, else `record.sqlite3` in the user's state directory."""
    if named := os.environ.get(RECORD_ENV):
        return Path(named).expanduser()
    return platformdirs.user_state_path("dflashctl", appauthor=False) / "record.sqlite3"


def mirror_path(record: Path) -> Path:
    """Return the folder of the logs' copies: beside the record, whose numbers it goes by."""
    return record.with_name(f"{record.name}.logs")


def ssh_path(record: Path) -> Path:
    """Return the folder of what OpenSSH's own ssh is to trust, as `attach` writes it."""
    return record.with_name(f"{record.name}.ssh")


def inventory_paths(
    explicit: Path | None, *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> list[Path]:
    """Return the folder to load: the first of --inventory, ./inventory, the user's, the shipped one.

    A folder that was asked for by name is returned even if it does not exist, so that its reader says so.
    """
    if explicit is not None:
        return [explicit]
    env = os.environ if env is None else env
    config_home = Path(env.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    package = Path(__file__).resolve().parent
    candidates = [
        (cwd or Path.cwd()) / "inventory",
        config_home / "dflashctl" / "inventory",
        package / "data" / "inventory",
        package.parent / "inventory",
    ]
    return next(([path] for path in candidates if _holds_yaml(path)), [])


def _holds_yaml(path: Path) -> bool:
    return path.is_dir() and any(file.suffix in SUFFIXES for file in path.iterdir())
