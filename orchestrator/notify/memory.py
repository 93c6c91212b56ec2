"""What was told, kept beside the record: a watch that is started again does not tell it again."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

from orchestrator.notify.message import Key, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

MAX_LINES = 5000


class Memory:
    """The things told of these runs. `begun` says when each was created: another of that name is another run.

    A line is written when a message has gone, so that what did not go is told by the next watch.
    """

    def __init__(self, path: Path, begun: Mapping[tuple[str, str], str]) -> None:
        self._path = path
        self._begun = begun
        self.told: tuple[Key, ...] = tuple(dict.fromkeys(self._load()))
        self._written = set(self.told)

    def add(self, keys: Iterable[Key]) -> str | None:
        """Write them down; return why that cannot be done, or None."""
        news = [key for key in dict.fromkeys(keys) if key not in self._written]
        if not news:
            return None
        self._written.update(news)
        try:
            # One write of one line each, appended: several watches may do so at once.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            with open(os.open(self._path, flags, 0o600), "a", encoding="utf-8") as file:  # noqa: PTH123
                file.write("".join(self._line(key) for key in news))
        except OSError as error:
            return error.strerror or str(error)
        return None

    def _line(self, key: Key) -> str:
        begun = self._begun.get((key.target, key.run), "")
        return json.dumps([key.target, key.run, key.attempt, key.kind.value, key.part, begun]) + "\n"

    def _load(self) -> list[Key]:
        try:
            lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []
        if len(lines) > MAX_LINES:
            lines = lines[-MAX_LINES // 2 :]
            self._shorten(lines)
        keys = []
        for line in lines:
            # A line that a crash cut says nothing; what it told is told once more.
            with contextlib.suppress(ValueError, TypeError):
                target, run, attempt, kind, part, begun = json.loads(line)
                if self._begun.get((target, run)) == begun:
                    keys.append(Key(target, run, attempt, Kind(kind), part))
        return keys

    def _shorten(self, lines: list[str]) -> None:
        new = self._path.with_name(f"{self._path.name}.new")
        with contextlib.suppress(OSError):
            new.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            new.replace(self._path)
