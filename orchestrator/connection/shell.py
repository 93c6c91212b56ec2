"""What a shell is: a thing that runs an argv and returns a `Result`, or keeps one running as a `Stream`.

Transports implement it, `ContainerShell` wraps it, tests fake it. Nothing here does any I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from orchestrator.errors import GuestError
from orchestrator.wire import MAX_LINE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Readable(Protocol):
    """The part of a binary file that standard input needs."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; `b""` at the end."""


CHUNK_BYTES = 64 * 1024
MAX_OUTPUT_BYTES = 64 << 20  # of one command; what comes out of a container may be hostile

Stdin: TypeAlias = "bytes | Readable | None"


@dataclass(frozen=True, kw_only=True)
class Result:
    """How an argv ended. `exit_code` None: unknown, the other side sent none (a signal there, or a drop)."""

    argv: tuple[str, ...]
    exit_code: int | None
    stdout: bytes
    stderr: bytes
    duration_s: float

    @property
    def is_success(self) -> bool:
        """It is known to have ended with 0."""
        return self.exit_code == 0

    def stderr_text(self) -> str:
        """Return stderr for messages and matching; what is no UTF-8 is replaced."""
        return self.stderr.decode("utf-8", "replace")


class Stream(Protocol):
    """A running argv: lines in, lines out. One thread reads; any thread may send or close."""

    def send(self, data: bytes) -> None:
        """Write to its standard input.

        Raises:
            BlindError: The channel broke.
        """

    def close_stdin(self) -> None:
        """End its standard input; harmless if it ended already."""

    def read_line(self, timeout_s: float) -> bytes | None:
        """Return the next line with its newline, None if none came in time, `b""` at a clean end.

        A last line without a newline is returned as it is.

        Raises:
            BlindError: The channel broke; the subclass says how.
        """

    def stderr_tail(self) -> str:
        """Return the last lines of stderr read so far, at most 8 KiB."""

    @property
    def exit_code(self) -> int | None:
        """The exit code, once known."""

    def close(self) -> None:
        """Let go of it. The far process sees the end of its input; nothing else is done to it."""


class Shell(Protocol):
    """Runs an argv somewhere. Safe to use from several threads."""

    name: str  # where, for messages: `local`, `10.1.2.6`, `10.1.2.6/200`

    def run(self, argv: Sequence[str], *, stdin: Stdin = None, timeout_s: float) -> Result:
        """Run to the end and return how it ended; a non-zero exit code is a result, not an error.

        Raises:
            CommandTimeout: No end within `timeout_s` of its start; it may still be running there.
            GuestError: It printed more than MAX_OUTPUT_BYTES.
            BlindError: The way there broke; the subclass says how.
            ValueError: A word holds a NUL.
        """

    def stream(self, argv: Sequence[str]) -> Stream:
        """Start it and return its stream.

        Raises:
            BlindError: The way there is closed; the subclass says how.
        """

    def close(self) -> None:
        """Give the connection back. Harmless to repeat."""


def chunks(stdin: bytes | Readable) -> Iterator[bytes]:
    """Yield what to write, piece by piece."""
    if isinstance(stdin, bytes):
        yield stdin
        return
    while piece := stdin.read(CHUNK_BYTES):
        yield piece


class Lines:
    """Cuts bytes into lines; holds at most one unfinished line of MAX_LINE_BYTES."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0

    def feed(self, data: bytes) -> None:
        """Add what was read."""
        self._buffer += data

    def pop(self) -> bytes | None:
        """Return the next whole line with its newline, None if there is none yet.

        Raises:
            GuestError: A line is longer than the wire allows.
        """
        end = self._buffer.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._buffer)
            if self._searched > MAX_LINE_BYTES:
                raise GuestError(
                    f"a line of more than {MAX_LINE_BYTES} bytes came: {bytes(self._buffer[:60])!r}..."
                )
            return None
        line = bytes(self._buffer[: end + 1])
        del self._buffer[: end + 1]
        self._searched = 0
        return line

    def rest(self) -> bytes:
        """Return and forget the unfinished last line."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        self._searched = 0
        return rest


class Tail:
    """Keeps the last bytes of a stderr."""

    LIMIT_BYTES = 8192

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> None:
        """Add what was read."""
        self._data = (self._data + data)[-self.LIMIT_BYTES :]

    @property
    def data(self) -> bytes:
        """The last bytes."""
        return self._data

    def text(self) -> str:
        """Return them for a message."""
        return self._data.decode("utf-8", "replace")


def check_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the argv as a tuple.

    Raises:
        ValueError: It is empty, or a word holds a NUL, which no system can pass on.
    """
    words = tuple(argv)
    if not words or not words[0]:
        raise ValueError("an argv needs a program")
    if any("\0" in word for word in words):
        raise ValueError("a word of an argv cannot hold a NUL")
    return words


def printable(text: str, limit: int = 300) -> str:
    """Return far text for a message: on one line, without control characters, cut."""
    shown = "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))
    return shown if len(shown) <= limit else f"{shown[: limit - 3]}..."


def summary(argv: Sequence[str], limit: int = 100) -> str:
    """Return an argv for a message: printable, on one line, cut."""
    text = " ".join(argv).encode("unicode_escape", "surrogateescape").decode("ascii")
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def too_much(name: str, words: Sequence[str]) -> GuestError:
    """Return the error for a command that prints without end."""
    return GuestError(
        f"{name}: {summary(words)} printed more than {MAX_OUTPUT_BYTES >> 20} MiB; it was cut off"
    )
