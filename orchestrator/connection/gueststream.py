"""GuestStream: messages to and from a guest that keeps running, and what its end means."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

from orchestrator.connection.container import not_started
from orchestrator.connection.shell import printable
from orchestrator.errors import GuestError, GuestRefused
from orchestrator.wire import Decoder, Encoder, Message, WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from orchestrator.connection.shell import Stream

# The message that ends an answer. LXC 5 reports 0 for a killed command, so an exit code alone proves nothing.
LAST = {"look": "end", "tail": "end", "capture": "end", "watch": "bye", "pull": "end", "venv": "made"}
_NO_PYTHON = re.compile(
    r"^(?:/usr/bin/)?env: (?P<quote>\W*)(?P<program>[^'\u2019:]*)\W*: (?P<why>.+)$", re.MULTILINE
)


class GuestStream:
    """Messages in, messages out. One thread reads; any thread may send or close."""

    def __init__(self, name: str, verb: str, stream: Stream, forget: Callable[[], None]) -> None:
        self._name = name
        self._verb = verb
        self._stream = stream
        self._forget = forget
        self._encoder = Encoder()
        self._decoder = Decoder()
        self._send_lock = threading.Lock()  # the lines are numbered: they must leave in that order
        self._last = ""
        self._is_closed = False
        self.is_ended = False

    def send(self, kind: str, fields: Mapping[str, Any] | None = None) -> None:
        """Send one line.

        Raises:
            BlindError: The channel broke.
        """
        with self._send_lock:
            self._stream.send(self._encoder.encode(kind, fields))

    def close_stdin(self) -> None:
        """End the guest's input, on which it ends itself."""
        self._stream.close_stdin()

    def read(self, timeout_s: float) -> Message | None:
        """Return the next message; None if none came in time, and when the guest has ended (`is_ended`).

        Raises:
            GuestRefused: The guest said no.
            GuestError: It crashed, or this is not the protocol.
            BlindError: The channel broke; the subclass says how.
        """
        if self.is_ended:
            return None
        line = self._stream.read_line(timeout_s)
        if line is None:
            return None
        if line == b"":
            self._end()
            return None
        if not line.endswith(b"\n"):
            raise GuestError(f"{self._name}: guest {self._verb}: its last line is cut short: {line[:60]!r}")
        try:
            message = self._decoder.decode(line)
        except WireError as cause:
            hint = last_words(self._stream.stderr_tail())
            raise GuestError(f"{self._name}: guest {self._verb}: {cause}", hint=hint) from cause
        self._last = message["type"]
        if message["type"] == "error":
            raise refusal(self._name, message)
        return message

    def _end(self) -> None:
        self.is_ended = True
        if self._is_closed:
            return
        code, stderr = self._stream.exit_code, self._stream.stderr_tail()
        if code != 0 or self._last not in LAST.values():
            self._forget()
            raise crash(self._name, self._verb, code, stderr)

    def close(self) -> None:
        """Let go of it; the guest ends itself at the end of its input, and a waiting `read` returns None."""
        self._is_closed = True
        self._stream.close()


def refusal(name: str, message: Message) -> GuestRefused:
    """Return the error for an `error` line."""
    text, hint = printable(str(message.get("message", ""))), printable(str(message.get("hint") or ""))
    return GuestRefused(f"{name}: {text}", reason=str(message.get("code", "")), hint=hint or None)


def crash(name: str, verb: str, exit_code: int | None, stderr: str) -> GuestError:
    """Return the error for a guest that ended without an answer."""
    if exit_code in (126, 127) and (match := _NO_PYTHON.search(stderr)):
        return not_started(name, match["program"], match["why"])
    how = "an unknown exit code" if exit_code is None else f"exit code {exit_code}"
    return GuestError(f"{name}: guest {verb} ended with {how} and no whole answer", hint=last_words(stderr))


def last_words(stderr: str) -> str | None:
    """Return the last line of stderr, which names a Python exception, as the hint."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return f"it said: {printable(lines[-1])}" if lines else None
