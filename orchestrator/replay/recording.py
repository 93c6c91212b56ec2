"""A recorded run on disk: what its attempts left behind, each thing with its time. Reading only.

recording.json                what the record knew: the run, its attempts' numbers, container, checkpoint
events.jsonl                  what a watch told and did, for people
attempts/<n>/*.json, metrics.jsonl   as the trainer and the supervisor wrote them
attempts/<n>/gpus.jsonl       {"at", "gpus": [...]}
attempts/<n>/kernel.jsonl     {"at", "line"}: the host's kernel lines
attempts/<n>/log, log.json    the log's pieces, one behind the other, and where each stood
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConfigError, NotFound
from orchestrator.terminal import one_line

if TYPE_CHECKING:
    from pathlib import Path

META = "recording.json"
SCHEMA = 1
PIECE_BYTES = 64 * 1024
MAX_JSON_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class LogPiece:
    """Bytes of the log that were kept: where they stood there, and where they stand in the file."""

    at: int
    size: int
    place: int


@dataclass(frozen=True, kw_only=True)
class RecordedAttempt:
    """What one attempt left behind. A file that is not there is None or empty."""

    number: int
    folder: Path
    known: dict[str, Any]  # the record's row of it

    def read(self, name: str) -> dict[str, Any] | None:
        """Return one of its JSON files.

        Raises:
            ConfigError: It is no JSON object.
        """
        path = self.folder / name
        return _object(path) if path.is_file() else None

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return the objects of one of its files of JSON lines; a cut last line is left out."""
        path = self.folder / name
        if not path.is_file():
            return []
        found = []
        for line in _text(path).split("\n"):
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                found.append(value)
        return found

    @cached_property
    def log_pieces(self) -> tuple[LogPiece, ...]:
        """The pieces of the log that were kept, by offset.

        Raises:
            ConfigError: log.json does not say where they stood.
        """
        log, told = self.folder / "log", self.read("log.json")
        size = log.stat().st_size if log.is_file() else 0
        if told is None:
            return (LogPiece(at=0, size=size, place=0),) if size else ()
        pieces, place = [], 0
        try:
            for row in told["pieces"]:
                pieces.append(LogPiece(at=int(row["at"]), size=int(row["bytes"]), place=place))
                place += pieces[-1].size
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f'{self.folder / "log.json"}: no list "pieces" of at and bytes') from error
        if place != size:
            raise ConfigError(f"{log}: {size} bytes, and log.json tells of {place}: it was cut or changed")
        return tuple(pieces)

    def log_slices(self) -> list[LogPiece]:
        """Return the log's pieces, cut into parts of at most PIECE_BYTES."""
        return [
            LogPiece(at=piece.at + done, size=min(PIECE_BYTES, piece.size - done), place=piece.place + done)
            for piece in self.log_pieces
            for done in range(0, piece.size, PIECE_BYTES)
        ]

    def log_bytes(self, piece: LogPiece) -> bytes:
        """Return the bytes of a piece."""
        with (self.folder / "log").open("rb") as file:
            file.seek(piece.place)
            return file.read(piece.size)


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A recorded run, its attempts oldest first."""

    run: str
    recorded_at: str | None
    meta: dict[str, Any]
    attempts: tuple[RecordedAttempt, ...]


def is_recording(folder: Path) -> bool:
    """Whether the folder is one that `record` wrote."""
    return (folder / META).is_file()


def read_recording(folder: Path) -> Recording:
    """Return the recording in `folder`.

    Raises:
        NotFound: There is none.
        ConfigError: It is of another schema, or holds no attempt.
    """
    if not is_recording(folder):
        raise NotFound(
            f"{one_line(str(folder))}: neither a recording ({META}) nor labelled logs (index.jsonl)",
            hint="`dflashctl record RUN` writes one",
        )
    meta = _object(folder / META)
    if meta.get("schema") != SCHEMA:
        raise ConfigError(
            f"{folder / META}: schema {meta.get('schema')!r}; this program reads {SCHEMA}",
            hint="replay it with the version that recorded it",
        )
    rows = meta.get("attempts") if isinstance(meta.get("attempts"), list) else []
    known = {row["n"]: row for row in rows or () if isinstance(row, dict) and _is_number(row.get("n"))}
    base = folder / "attempts"
    # Of an attempt that left no file the record's row is all there is.
    numbers = sorted({*known, *(int(each.name) for each in base.glob("*") if each.name.isdecimal())})
    if not numbers:
        raise ConfigError(f"{one_line(str(base))}: no attempt in it")
    return Recording(
        run=str(meta.get("run") or "run"),
        recorded_at=meta.get("recorded_at"),
        meta=meta,
        attempts=tuple(
            RecordedAttempt(number=n, folder=base / str(n), known=known.get(n, {})) for n in numbers
        ),
    )


def _is_number(value: object) -> bool:
    return type(value) is int and 0 < value < 1_000_000_000


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: no JSON object: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: a JSON object was expected, not {type(value).__name__}")
    return value


def _text(path: Path) -> str:
    try:
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise ConfigError(f"{path}: {size} bytes; a file of a recording has at most {MAX_JSON_BYTES}")
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
