"""What `pull` answers, checked line by line: a container may send anything, and it is about to be written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from orchestrator.connection.shell import printable
from orchestrator.errors import CommandTimeout, GuestError
from orchestrator.wire import MAX_CHUNK_BYTES, Message, WireError, unpack_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.connection.guest import GuestClient

READ_TIMEOUT_S = 60.0
MAX_FILES = 10_000
MAX_FILE_BYTES = 1 << 44
MAX_DEPTH = 8
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+=@-]{0,199}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, kw_only=True)
class FarFile:
    """A file of a run's directory; `sha256` of the whole file, None where it was not asked for."""

    path: str
    size: int
    sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Bytes of the file that was announced last; empty where the guest only says that it goes on hashing."""

    path: str
    offset: int
    data: bytes


Event: TypeAlias = "FarFile | Piece"


def incoming(client: GuestClient, request: dict[str, Any]) -> Iterator[Event]:
    """Yield a `FarFile` without sha256, its pieces in order and without gaps, then the same with its sha256.

    Raises:
        GuestRefused: There is no such path, or it may not be read.
        GuestError: The answer is not the protocol, or names a path that was not asked for.
        BlindError: The way there broke.
    """
    reader = _Reader(client.name, request)
    stream = client.watch(request, verb="pull")
    try:
        while True:
            message = stream.read(READ_TIMEOUT_S)
            if message is None and stream.is_ended:
                return
            if message is None:
                raise CommandTimeout(f"{client.name}: guest pull said nothing for {READ_TIMEOUT_S:g} s")
            event = reader.take(message)
            if event is not None:
                yield event
    finally:
        stream.close()


class _Reader:
    """The order of the lines, and the bounds of what they hold."""

    def __init__(self, name: str, request: dict[str, Any]) -> None:
        self._name = name
        self._asked = str(request["path"])
        self._offsets = request.get("offsets") or {}
        self._want = request.get("want") or "data"
        self._seen: set[str] = set()
        self._open: FarFile | None = None
        self._at = 0

    def take(self, message: Message) -> Event | None:
        kind = message["type"]
        if kind == "file":
            return self._file(message)
        if kind == "end" and self._open is None:
            return None
        if self._open is None or message.get("path") != self._open.path:
            raise self._wrong(f"a line {printable(kind, 40)!r} that belongs to no file")
        if kind == "data":
            return self._data(self._open, message)
        if kind == "hashed":
            return Piece(path=self._open.path, offset=self._at, data=b"")
        if kind == "file_end":
            return self._file_end(self._open, message)
        raise self._wrong(f"a line {printable(kind, 40)!r}")

    def _file(self, message: Message) -> FarFile:
        path, size = message.get("path"), message.get("size")
        if self._open is not None or len(self._seen) >= MAX_FILES:
            raise self._wrong("a file too many, or inside of another")
        if not isinstance(path, str) or not is_safe(path, self._asked) or path in self._seen:
            raise self._wrong(f"path {printable(str(path), 100)!r}, which was not asked for or is not safe")
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= MAX_FILE_BYTES:
            raise self._wrong(f"{path}: size {printable(str(size), 40)}")
        self._seen.add(path)
        found = FarFile(path=path, size=size)
        if self._want != "names":
            self._open, self._at = found, min(self._offsets.get(path, 0), size)
        return found

    def _data(self, file: FarFile, message: Message) -> Piece:
        try:
            data = unpack_bytes(message["data"])
        except (KeyError, TypeError, WireError) as cause:
            raise self._wrong(f"{file.path}: data that is not base64") from cause
        is_next = message.get("offset") == self._at
        if self._want != "data" or not is_next or not 0 < len(data) <= MAX_CHUNK_BYTES:
            raise self._wrong(f"{file.path}: {len(data)} bytes that are not the next ones after {self._at}")
        if self._at + len(data) > file.size:
            raise self._wrong(f"{file.path}: more than the {file.size} bytes that were announced")
        piece = Piece(path=file.path, offset=self._at, data=data)
        self._at += len(data)
        return piece

    def _file_end(self, file: FarFile, message: Message) -> FarFile:
        sha256 = message.get("sha256")
        if not isinstance(sha256, str) or not _SHA256.match(sha256):
            raise self._wrong(f"{file.path}: no sha256")
        if self._want == "data" and self._at != file.size:
            raise self._wrong(f"{file.path}: ended after {self._at} of {file.size} bytes")
        self._open = None
        return FarFile(path=file.path, size=file.size, sha256=sha256)

    def _wrong(self, what: str) -> GuestError:
        return GuestError(f"{self._name}: guest pull: {what}", hint="nothing of it was kept")


def is_safe(path: str, asked: str) -> bool:
    """Whether a far path is the one asked for or below it, and may become a path here."""
    parts = path.split("/")
    is_below = path == asked or path.startswith(f"{asked}/")
    return (
        is_below and len(parts) <= MAX_DEPTH and all(_PART.match(part) and ".." not in part for part in parts)
    )
