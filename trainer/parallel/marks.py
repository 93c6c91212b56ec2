"""A rank's output, cut into whole lines that say whose they are. Pure.

All ranks write to one log. Python writes a traceback in many pieces, so pieces of two ranks would mix there.
"""

from __future__ import annotations

MAX_LINE = 1 << 16


class Marker:
    """Takes a rank's bytes as they come, gives lines that begin with `[rankN]: `, torch's own mark."""

    def __init__(self, rank: int) -> None:
        self._own = b"[rank%d]:" % rank
        self._mark = self._own + b" " if rank else b""  # the leader speaks for the job
        self._pending = b""

    def feed(self, data: bytes, *, last: bool = False) -> bytes:
        """Return the lines that are whole now; with `last`, or past 64 KiB, also one without its end."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        if self._pending and (last or len(self._pending) > MAX_LINE):
            lines.append(self._pending)
            self._pending = b""
        return b"".join(self._marked(line) + b"\n" for line in lines)

    def _marked(self, line: bytes) -> bytes:
        return line if line.startswith(self._own) else self._mark + line
