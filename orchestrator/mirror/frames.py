"""Compressed frames of a log: gzip members that say in their header which bytes they hold. Pure.

`zcat` reads them. Each is whole by itself, so a piece of a log of gigabytes is read from one of them; who
looks for it hops from header to header. When its bytes came stands there too: `logs --since` goes by it.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

FRAME_BYTES = 1 << 20  # of the log
LEVEL = 1  # a log is repetitive: level 6 saves a quarter more and takes three times as long
MARK_EVERY_S = 5.0
MAX_MARKS = 100
# Magic, deflate, with an extra field; time, flags, no system. Then the extra field's length.
_MEMBER = struct.Struct("<4sIBBH")
_MAGIC = b"\x1f\x8b\x08\x04"
# Our subfield: its name and length; version, offset, bytes of the log, bytes of the member, marks.
_FIELD = struct.Struct("<2sHBQIIH")
_NAME = b"DM"
_GZIP = zlib.MAX_WBITS + 16
_MARK = struct.Struct("<Id")
_END = struct.Struct("<II")
_HEAD = _MEMBER.size + _FIELD.size
MAX_HEAD = _HEAD + MAX_MARKS * _MARK.size
MAX_MEMBER = MAX_HEAD + FRAME_BYTES + (FRAME_BYTES >> 8) + 64


@dataclass(frozen=True)
class Mark:
    """The log's bytes from `offset` on, up to the next mark's, had all come `at` (epoch seconds)."""

    offset: int
    at: float


@dataclass(frozen=True)
class Frame:
    """A member's header. `offset` and `length` are of the log, `size` of the member itself."""

    offset: int
    length: int
    size: int
    marks: tuple[Mark, ...]

    @property
    def stop(self) -> int:
        """The log's byte after its last one."""
        return self.offset + self.length


def thinned(marks: Sequence[Mark]) -> tuple[Mark, ...]:
    """Return at most MAX_MARKS, MARK_EVERY_S apart or more; each still says no time too early."""
    every_s = MARK_EVERY_S
    while True:
        kept: list[Mark] = []
        begun = 0.0
        for mark in marks:
            if kept and 0 <= mark.at - begun < every_s:
                kept[-1] = Mark(kept[-1].offset, max(kept[-1].at, mark.at))
            else:
                kept.append(mark)
                begun = mark.at
        if len(kept) <= MAX_MARKS:
            return tuple(kept)
        marks, every_s = (kept, every_s * 2) if every_s < 1e9 else (_joined(kept), every_s)


def _joined(marks: list[Mark]) -> list[Mark]:
    """A clock that jumps back and forth: every two become one."""
    pairs = [marks[at : at + 2] for at in range(0, len(marks), 2)]
    return [Mark(pair[0].offset, max(mark.at for mark in pair)) for pair in pairs]


def encode(offset: int, data: bytes, marks: Sequence[Mark]) -> bytes:
    """Return the frame of at most FRAME_BYTES."""
    kept = thinned(marks)
    # zlib's own gzip head, which ours replaces, brings the checksum with it.
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, _GZIP)
    body = (packer.compress(data) + packer.flush())[_MEMBER.size - 2 :]
    told = b"".join(_MARK.pack(mark.offset - offset, mark.at) for mark in kept)
    length = _FIELD.size + len(told)
    size = _MEMBER.size + length + len(body)
    written = min(max(int(kept[-1].at), 0), 0xFFFFFFFF) if kept else 0
    head = _MEMBER.pack(_MAGIC, written, 0, 255, length)
    field = _FIELD.pack(_NAME, length - 4, 1, offset, len(data), size, len(kept))
    return b"".join((head, field, told, body))


def header(data: bytes) -> Frame | None:
    """Return what a member's first MAX_HEAD bytes say; None if they are none of ours, or cut."""
    if len(data) < _HEAD:
        return None
    magic, _, _, _, extra = _MEMBER.unpack_from(data)
    name, _, version, offset, length, size, count = _FIELD.unpack_from(data, _MEMBER.size)
    told = count * _MARK.size
    is_ours = (magic, name, version, extra) == (_MAGIC, _NAME, 1, _FIELD.size + told)
    is_sane = length <= FRAME_BYTES and _HEAD + told < size <= MAX_MEMBER
    if not (is_ours and is_sane) or len(data) < _HEAD + told:
        return None
    pairs = _MARK.iter_unpack(data[_HEAD : _HEAD + told])
    return Frame(offset, length, size, tuple(Mark(offset + ahead, at) for ahead, at in pairs))


def decode(member: bytes, frame: Frame) -> bytes | None:
    """Return the log's bytes in a whole member; None if it is damaged."""
    begin = _HEAD + len(frame.marks) * _MARK.size
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        data = unpacker.decompress(member[begin:], frame.length)
        data += unpacker.decompress(unpacker.unconsumed_tail, 1)  # its end, which is no byte of the log
    except zlib.error:
        return None
    end = unpacker.unused_data
    if len(end) != _END.size or _END.unpack(end) != (zlib.crc32(data), len(data)):
        return None
    return data if len(data) == frame.length else None
