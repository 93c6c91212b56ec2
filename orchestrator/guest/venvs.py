"""The virtual environments that provisioning makes: `<state>/venvs/<key>`; `<state>/venv` links to the last.

One is whole only if its stamp is in it, which is written last. Its place never changes: its programs name it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from orchestrator.guest import files

PROC = Path("/proc")
STAMP = "dflashctl.json"
KEY = re.compile(r"[0-9a-f]{16}")


def folder(state: Path) -> Path:
    """Return the folder of all."""
    return state / "venvs"


def wheelhouse(state: Path, key: str) -> Path:
    """Return where the wheels for one of them are collected until it is made."""
    return state / "wheelhouse" / key


def stamp(venv: Path) -> dict[str, Any] | None:
    """Return what is written of a whole one; None for one that is not."""
    return files.read_json(venv / STAMP) if (venv / "bin" / "python").exists() else None


def users(venv: Path) -> list[int]:
    """Return the processes that were started by its Python."""
    found = []
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if entry.isdigit() and files.read_piece(PROC / entry / "cmdline", 0, 4096).startswith(
            f"{venv}/".encode()
        ):
            found.append(int(entry))
    return sorted(found)


def point(state: Path, key: str) -> None:
    """Make `<state>/venv` name this one, in one step.

    Raises:
        OSError: Something that is no link stands there.
    """
    link, fresh = state / "venv", state / f".venv.{os.getpid()}"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(f"venvs/{key}")
    try:
        fresh.replace(link)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    files.sync_directory(state)


def current_python(state: Path) -> str | None:
    """Return the Python of the last that was made, by its own place; None without a whole one."""
    link = state / "venv"
    try:
        venv = folder(state) / link.readlink().name
    except OSError:
        return None
    is_ours = KEY.fullmatch(venv.name) is not None and link.resolve() == venv
    return str(venv / "bin" / "python") if is_ours and stamp(venv) is not None else None
