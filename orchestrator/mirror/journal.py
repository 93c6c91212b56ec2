"""The newest bytes of a living log, not yet compressed: records with checksums, so a torn one shows. Pure."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from orchestrator.mirror.frames import Mark

_HEAD = struct.Struct("<8sQ")  # magic, the log's offset of the first record
_MAGIC = b"DFLTAIL1"
_RECORD = struct.Struct("<IId")  # bytes, their checksum, when they came
HEAD_BYTES = _HEAD.size


@dataclass(frozen=True)
class Journal:
    """What a journal holds: the log's bytes from `offset` on; `good`: the file's bytes that are whole."""

    offset: int
    data: bytes
    marks: tuple[Mark, ...]
    good: int

    @property
    def stop(self) -> int:
        """The log's byte after its last one."""
        return self.offset + len(self.data)


def head(offset: int) -> bytes:
    """Return how a journal begins."""
    return _HEAD.pack(_MAGIC, offset)


def record(data: bytes, at: float) -> bytes:
    """Return some bytes of the log as they are appended."""
    return _RECORD.pack(len(data), zlib.crc32(data), at) + data


def parse(content: bytes) -> Journal | None:
    """Return the whole records of a journal; None if not even its head is whole."""
    if len(content) < HEAD_BYTES:
        return None
    magic, offset = _HEAD.unpack_from(content)
    if magic != _MAGIC:
        return None
    parts: list[bytes] = []
    marks: list[Mark] = []
    at, log_at = HEAD_BYTES, offset
    while at + _RECORD.size <= len(content):
        length, checksum, came = _RECORD.unpack_from(content, at)
        data = content[at + _RECORD.size : at + _RECORD.size + length]
        if not length or len(data) < length or zlib.crc32(data) != checksum:
            break
        parts.append(data)
        marks.append(Mark(log_at, came))
        at, log_at = at + _RECORD.size + length, log_at + length
    return Journal(offset, b"".join(parts), tuple(marks), at)
