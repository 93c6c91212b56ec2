"""The quota: the oldest logs that are written no more go first, and each removal is written down and told.

Of a log that is written now only its oldest segments go, and only by the watch that writes it; its newest
segment and its journal always stay.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.clock import timestamp
from orchestrator.mirror import layout, notes, segments
from orchestrator.mirror.notes import Removed
from orchestrator.mirror.reading import AttemptLog
from orchestrator.sizes import size_text

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime
    from pathlib import Path

    from orchestrator.mirror.layout import RunKey

DEFAULT_TOTAL = 2 << 30
DEFAULT_RUN = 500 << 20
_WHOLE = ""


@dataclass(frozen=True)
class Limits:
    """Bytes of files: of all runs together, and of each."""

    total: int = DEFAULT_TOTAL
    run: int = DEFAULT_RUN

    @property
    def segment_bytes(self) -> int:
        """How large a file of frames gets, so that the newest ones are a small part of the quota."""
        return max(1, min(layout.SEGMENT_BYTES, self.run // 8, self.total // 8))


@dataclass(frozen=True)
class Removal:
    """What went: `size` bytes of files with the log's bytes [start, stop); `what` tells which, if not all."""

    key: RunKey
    attempt: int
    start: int
    stop: int
    size: int
    by: str
    what: str

    @property
    def is_whole(self) -> bool:
        """Whether nothing of the attempt is left."""
        return self.what == _WHOLE

    @property
    def text(self) -> str:
        """For people."""
        which = f"the copy of attempt {self.attempt}'s log{self.what}"
        return f"{which} was removed by {self.by} ({size_text(self.size)})"


@dataclass
class _Held:
    """One attempt's files."""

    folder: Path
    key: RunKey
    attempt: int
    size: int
    written_at: float
    is_living: bool
    files: list[Path] = field(default_factory=list)


def size_of(folder: Path, attempts: Collection[int] | None = None) -> int:
    """Return the bytes of all files in a run's folder, or of the bytes kept of these attempts."""
    if attempts is None:
        return sum(_stat(path)[0] for path in _files(folder))
    return sum(each.size for each in _held(folder) if each.attempt in attempts)


def remove_run(folder: Path) -> int:
    """Remove all that is kept of a run; return its bytes.

    Raises:
        OSError: It cannot be removed.
    """
    size = size_of(folder)
    if folder.is_dir():
        shutil.rmtree(folder)
    return size


def sweep(root: Path, limits: Limits, now: datetime, *, owned: Collection[Path]) -> list[Removal]:
    """Remove what is over the quota; `owned`: the folders whose lock this process has.

    Raises:
        OSError: What is to be removed cannot be.
    """
    held = [each for folder in layout.folders(root) for each in _held(folder)]
    removals: list[Removal] = []
    by_run: dict[Path, list[_Held]] = {}
    for each in held:
        by_run.setdefault(each.folder, []).append(each)
    of_a_run = f"the quota of {size_text(limits.run)} a run"
    for mine in by_run.values():
        removals += _shrink(mine, limits.run, of_a_run, now, owned)
    return removals + _shrink(held, limits.total, f"the quota of {size_text(limits.total)}", now, owned)


def remove(folder: Path, attempt: int, by: str, now: datetime) -> Removal | None:
    """Remove what is kept of an attempt, and write that down; None if nothing is.

    Raises:
        OSError: It cannot be removed.
    """
    found = next((each for each in _held(folder) if each.attempt == attempt), None)
    return _remove(found, by, now) if found is not None and found.size else None


def _shrink(
    held: Sequence[_Held], limit: int, by: str, now: datetime, owned: Collection[Path]
) -> list[Removal]:
    total = sum(each.size for each in held)
    removals: list[Removal] = []
    for each in sorted(held, key=lambda each: each.written_at):
        if total <= limit:
            return removals
        if each.size and not each.is_living:
            removals.append(_remove(each, by, now))
            total -= removals[-1].size
    living = [each for each in held if each.is_living and each.folder in owned]
    while total > limit and (parts := [part for each in living for part in _parts(each)]):
        _, oldest, path = min(parts, key=lambda part: part[0])
        removals.append(_remove_part(oldest, path, by, now))
        total -= removals[-1].size
    return removals


def _parts(held: _Held) -> list[tuple[float, _Held, Path]]:
    """Return what may go of a log that is written now: what was emptied, then all but the newest segment."""
    mine = layout.segments(held.folder, held.attempt)
    newest = [each for each in mine if each.emptied == 0][-1:]
    return [(_stat(each.path)[1], held, each.path) for each in mine if each not in newest]


def _remove_part(held: _Held, path: Path, by: str, now: datetime) -> Removal:
    found, _ = segments.scan(path)
    start = min((each.frame.offset for each in found), default=0)
    stop = max((each.frame.stop for each in found), default=0)
    size = _stat(path)[0]
    what = " as it was before somebody emptied it"
    if ".emptied-" not in path.name:
        what = f" up to byte {stop}"
        _note(held, Removed(start=start, stop=stop, size=size, at=timestamp(now), by=by))
    path.unlink(missing_ok=True)
    held.size -= size
    return Removal(held.key, held.attempt, start, stop, size, by, what)


def _remove(held: _Held, by: str, now: datetime) -> Removal:
    stop, size = AttemptLog(held.folder, held.attempt).size, held.size
    # The word of it first: what is half removed is known to be.
    _note(held, Removed(start=0, stop=stop, size=size, at=timestamp(now), by=by))
    for path in held.files:
        path.unlink(missing_ok=True)
    held.size = 0
    return Removal(held.key, held.attempt, 0, stop, size, by, _WHOLE)


def _note(held: _Held, removed: Removed) -> None:
    notes.change(held.folder, held.attempt, lambda before: notes.with_removed(before, removed))


def _held(folder: Path) -> list[_Held]:
    key = layout.run_key(folder)
    numbers = layout.attempts(folder)
    if key is None or not numbers:
        return []
    is_watched = layout.is_watched(folder)
    files = _files(folder)
    found = []
    for number in numbers:
        told, head = notes.path_of(folder, number), f"attempt-{number}."
        mine = [path for path in files if path.name.startswith(head) and path != told]
        stats = [_stat(path) for path in mine]
        size, written_at = sum(each[0] for each in stats), max((each[1] for each in stats), default=0.0)
        is_living = is_watched and number == numbers[-1]
        found.append(_Held(folder, key, number, size, written_at, is_living, mine))
    return found


def _files(folder: Path) -> list[Path]:
    with suppress(OSError):
        return list(folder.iterdir())
    return []


def _stat(path: Path) -> tuple[int, float]:
    """Return size and time of the last write; (0, 0.0) if it is gone."""
    with suppress(OSError):
        found = path.stat()
        return found.st_size, found.st_mtime
    return 0, 0.0
