"""Lines that a pane wrapped at its width, joined again; offsets stay those of what came in. Pure."""

from __future__ import annotations

import re
import unicodedata
from array import array
from bisect import bisect_right

from orchestrator.terminal import plain

MAX_HELD_BYTES = 32 * 1024  # as much of a line as the scanner reads

# A bar is drawn to the pane's width on purpose, and a rule of one sign too: neither goes on below.
_ENDS_HERE = re.compile(r"(?:it/s|s/it|B/s)[^\]]{0,200}\]\s*$|^\s*([-=*#_~+])\1*$")
_BEGINS_ANEW = re.compile(
    r"Traceback \(most recent call last\)|\s+File \"|\[(?:rank|default) ?\d+\]:|\[?[EWIF]\d{3,4} \d\d:"
    r"|\[?\d{4}-\d\d-\d\d[ T,]\d\d:"
)


class Unwrapper:
    """Joins each line that fills `width` columns with the line below it, chunk by chunk."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._partial = b""  # of a line whose end has not come
        self._is_long = False  # of that line some was given out already
        self._owes_end = False  # the last line filled the width, and its end was held back
        self._given = 0
        self._cuts = array("Q")  # where, in what was given out, a line's end was left out

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes and return what is settled of them, joined."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        out = bytearray()
        for line in lines:
            self._take(line, out)
        if len(self._partial) > MAX_HELD_BYTES:
            self._start(self._partial, out)
            out += self._partial
            self._partial, self._is_long = b"", True
        self._given += len(out)
        return bytes(out)

    def end(self) -> bytes:
        """Return what was held back, after the last byte came."""
        out = bytearray()
        if self._partial:
            self._start(self._partial, out)
            out += self._partial
        elif self._owes_end:
            out += b"\n"
        self._partial, self._owes_end = b"", False
        self._given += len(out)
        return bytes(out)

    def original(self, offset: int) -> int:
        """Return where the byte at `offset` of what was given out stood in what came in."""
        return offset + bisect_right(self._cuts, offset)

    def _take(self, line: bytes, out: bytearray) -> None:
        self._start(line, out)
        out += line
        self._owes_end = not self._is_long and self._goes_on(line)
        self._is_long = False
        if not self._owes_end:
            out += b"\n"

    def _start(self, line: bytes, out: bytearray) -> None:
        """Give out the end that is owed, unless `line` goes on with the one before."""
        if not self._owes_end:
            return
        self._owes_end = False
        if not line or _BEGINS_ANEW.match(line[:200].decode("utf-8", "replace")):
            out += b"\n"
        else:
            self._cuts.append(self._given + len(out))

    def _goes_on(self, line: bytes) -> bool:
        if len(line) < self._width:  # no character takes more columns than bytes
            return False
        text = plain(line.decode("utf-8", "replace"), len(line))
        return _columns(text) == self._width and _ENDS_HERE.search(text) is None


def unwrap(data: bytes, width: int) -> bytes:
    """Return a whole text with its wrapped lines joined."""
    unwrapper = Unwrapper(width)
    return unwrapper.feed(data) + unwrapper.end()


def _columns(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(_column(char) for char in text)


def _column(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1
