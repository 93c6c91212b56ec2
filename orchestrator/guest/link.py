"""The guest's two ends of the wire: lines in from stdin, numbered lines out to stdout.

Both are raw descriptors: raw bytes follow an `install` request, and `watch` must see a line at once.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from typing import TYPE_CHECKING, Any

from orchestrator import wire
from orchestrator.guest.refusal import Refusal, from_os_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

REQUEST_LIMIT_S = 60
REFUSED = 3


class Lines:
    """Reads lines, then raw bytes, from a descriptor."""

    def __init__(self, fd: int = 0) -> None:
        self.fd = fd
        self.is_ended = False
        self._buffer = bytearray()
        self._decoder = wire.Decoder()

    def message(self, timeout_s: float | None) -> wire.Message | None:
        """Return the next message, or None if none came in time or stdin ended (`is_ended`).

        Raises:
            WireError: A line is not our protocol.
        """
        while True:
            end = self._buffer.find(b"\n")
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                return self._decoder.decode(line)
            if len(self._buffer) > wire.MAX_LINE_BYTES:
                raise wire.WireError(f"a line is over {wire.MAX_LINE_BYTES} bytes")
            if self.is_ended or not select.select([self.fd], [], [], timeout_s)[0]:
                return None
            self._fill()

    def raw(self, size: int, timeout_s: float | None = None) -> bytes:
        """Return 1 to `size` raw bytes that follow the last message; empty at the end.

        Raises:
            TimeoutError: None came in time.
        """
        if not self._buffer and not self.is_ended:
            if not select.select([self.fd], [], [], timeout_s)[0]:
                raise TimeoutError(f"nothing came for {timeout_s:g} s")
            self._fill()
        piece = bytes(self._buffer[:size])
        del self._buffer[:size]
        return piece

    def _fill(self) -> None:
        piece = os.read(self.fd, 1 << 16)
        self.is_ended = not piece
        self._buffer += piece


class Link:
    """What a verb talks through."""

    def __init__(self, lines: Lines, fd: int = 1) -> None:
        self.lines = lines
        self._fd = fd
        self._encoder = wire.Encoder()

    def send(self, kind: str, fields: Mapping[str, Any] | None = None) -> None:
        """Write one line; blocks while the near side does not read."""
        data = self._encoder.encode(kind, fields)
        while data:
            data = data[os.write(self._fd, data) :]

    def tell(self, kind: str, fields: Mapping[str, Any] | None = None) -> None:
        """Like `send`; what is being done is done to its end, whether or not anybody listens."""
        try:
            self.send(kind, fields)
        except BrokenPipeError:
            _forget_stdout()


OURS = (
    "DFLASHCTL_RUN",
    "DFLASHCTL_RUN_DIR",
    "DFLASHCTL_ATTEMPT",
    "DFLASHCTL_ATTEMPT_DIR",
    "DFLASHCTL_CHECKPOINT_DIR",
)


def serve(verb: str, run: Callable[[str, wire.Message, Link], None]) -> int:
    """Read the request, let `run` answer it, and turn a refusal into the `error` line; returns 0 or 3."""
    # tmux without a UTF-8 locale rewrites tabs, and a non-interactive command has none.
    os.environ["LC_ALL"] = "C.UTF-8"
    for name in OURS:  # called from inside a run, what we start must not seem to be of it
        os.environ.pop(name, None)
    link = Link(Lines())
    try:
        try:
            request = link.lines.message(REQUEST_LIMIT_S)
            if request is None:
                raise Refusal("bad_request", f"{verb}: no request line on stdin")
            run(verb, request, link)
        except wire.WireError as error:
            raise Refusal("bad_request", f"{verb}: {error}") from error
        except BrokenPipeError:
            raise
        except OSError as error:
            raise from_os_error(error, verb) from error
    except Refusal as refusal:
        return _refuse(link, refusal)
    except BrokenPipeError:
        _forget_stdout()  # nobody listens; ending quietly is all that is left
    return 0


def _refuse(link: Link, refusal: Refusal) -> int:
    from orchestrator.guest import masks  # only a refusal pays for it

    message = masks.own().text(refusal.message)
    fields = {"code": refusal.code, "message": message, "hint": refusal.hint, **refusal.details}
    try:
        link.send("error", fields)
    except BrokenPipeError:
        _forget_stdout()
    return REFUSED


def _forget_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def end_if_silent(limit_s: float) -> None:
    """Kill this process in `limit_s` seconds unless called again, also while a write blocks."""
    signal.setitimer(signal.ITIMER_REAL, limit_s)
