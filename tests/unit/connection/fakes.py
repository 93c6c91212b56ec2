"""A shell that answers from a script, for what wraps shells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.connection.shell import Result, Stdin, Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def result(code: int | None = 0, out: bytes = b"", err: bytes = b"") -> Result:
    """One answer; the argv is filled in by the shell."""
    return Result(argv=(), exit_code=code, stdout=out, stderr=err, duration_s=0.0)


class FakeShell:
    """Answers each argv by `answer(argv, stdin)` and remembers what it was asked."""

    name = "10.1.2.6"

    def __init__(self, answer: Callable[[tuple[str, ...], bytes], Result]) -> None:
        self.answer = answer
        self.asked: list[tuple[str, ...]] = []

    def run(self, argv: Sequence[str], *, stdin: Stdin = None, timeout_s: float) -> Result:
        """See `Shell.run`."""
        words = tuple(argv)
        self.asked.append(words)
        data = stdin if isinstance(stdin, bytes) else b"" if stdin is None else b"".join(iter_read(stdin))
        return self.answer(words, data)

    def stream(self, argv: Sequence[str]) -> Stream:
        """See `Shell.stream`."""
        self.asked.append(tuple(argv))
        return FakeStream(self.answer(tuple(argv), b""))

    def close(self) -> None:
        """Nothing is held."""


def iter_read(stdin) -> list[bytes]:
    """Read a file to its end."""
    parts = []
    while part := stdin.read(65536):
        parts.append(part)
    return parts


class FakeStream:
    """Plays one result's stdout as lines, then ends as it did."""

    def __init__(self, ended: Result) -> None:
        self._ended = ended
        self._lines = ended.stdout.splitlines(keepends=True)
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> None:
        """See `Stream.send`."""
        self.sent.append(data)

    def close_stdin(self) -> None:
        """See `Stream.close_stdin`."""

    def read_line(self, timeout_s: float) -> bytes | None:
        """See `Stream.read_line`."""
        return self._lines.pop(0) if self._lines else b""

    def stderr_tail(self) -> str:
        """See `Stream.stderr_tail`."""
        return self._ended.stderr_text()

    @property
    def exit_code(self) -> int | None:
        """See `Stream.exit_code`."""
        return None if self._lines else self._ended.exit_code

    def close(self) -> None:
        """See `Stream.close`."""
