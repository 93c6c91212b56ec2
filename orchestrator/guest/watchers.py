"""Who watches here: a file a watcher, locked for as long as its guest lives. It decides nothing; it is told.

A file has its name only once it is locked, so one that nobody locks is of a watcher that has gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from typing import TYPE_CHECKING, Any

from orchestrator import wire
from orchestrator.guest import clock, files, lock

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FOLDER = "watchers"
MAX_SHOWN = 32
MAX_CHARS = 64
MAX_BYTES = 64 << 10


class Presence:
    """This guest's own file; without one (a full disk) it just is not told."""

    def __init__(self, state: Path, request: Mapping[str, Any]) -> None:
        self._folder = state / FOLDER
        self._fd: int | None = None
        self.name = f"{secrets.token_hex(8)}.json"
        who = request.get("watcher")
        if isinstance(who, dict):
            with contextlib.suppress(OSError):
                self._announce(who, request.get("runs"))

    def _announce(self, who: Mapping[str, Any], runs: object) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        hidden = self._folder / f".{self.name}"
        fields = {key: str(who.get(key))[:MAX_CHARS] for key in ("user", "host", "pid")}
        names = sorted(str(name) for name in runs) if isinstance(runs, dict) else None
        body = {
            "schema": wire.SCHEMA,
            **fields,
            "acts": bool(who.get("acts")),
            "runs": names,
            "at": clock.now(),
        }
        fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(fd, json.dumps(body).encode())
            hidden.rename(self._folder / self.name)
        except OSError:
            hidden.unlink(missing_ok=True)
            os.close(fd)
            raise
        self._fd = fd

    def close(self) -> None:
        """Take the file away."""
        if self._fd is None:
            return
        with contextlib.suppress(OSError):
            (self._folder / self.name).unlink(missing_ok=True)
        os.close(self._fd)
        self._fd = None


def present(state: Path, own: str | None = None) -> list[dict[str, Any]]:
    """Return who watches now, the longest first; `own` is the asker's file. What is left of others goes."""
    folder = state / FOLDER
    try:
        names = [name for name in sorted(os.listdir(folder)) if name.endswith(".json")]  # noqa: PTH208
    except OSError:
        return []
    found = []
    for name in names:
        path = folder / name
        if name.startswith(".") or path.is_symlink():
            continue
        if name != own and not lock.is_held(path):
            with contextlib.suppress(OSError):
                path.unlink()
            continue
        fields = _read(path)
        if fields is not None:
            found.append({**fields, "me": name == own})
    return sorted(found, key=lambda each: str(each["at"]))[:MAX_SHOWN]


def _read(path: Path) -> dict[str, Any] | None:
    value = files.parse_object(files.read_piece(path, 0, MAX_BYTES))
    if value is None:
        return None
    runs = value.get("runs")
    told = {key: str(value.get(key))[:MAX_CHARS] for key in ("user", "host", "pid", "at")}
    names = [str(name)[:MAX_CHARS] for name in runs[:1000]] if isinstance(runs, list) else None
    return {**told, "acts": value.get("acts") is True, "runs": names}
