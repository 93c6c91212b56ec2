"""GuestClient: put the guest where it runs, ask it, and keep a stream of what it sees.

The near half of the wire in DESIGN.md. Anything that is not the protocol is a `GuestError`, which says
nothing about the run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.connection.guestfile import GuestFile, build_guest
from orchestrator.connection.gueststream import LAST, GuestStream, crash, last_words, refusal
from orchestrator.connection.shell import printable
from orchestrator.errors import GuestError, GuestRefused
from orchestrator.wire import Decoder, Encoder, Message, WireError

if TYPE_CHECKING:
    from orchestrator.connection.shell import Readable, Result, Shell
    from orchestrator.inventory import Target

CHECK_TIMEOUT_S = 20.0
PUSH_TIMEOUT_S = 120.0
REFUSED_EXIT_CODE = 3

# $1 the folder, $2 the sha256. The old name stays until the new file is whole, so a reader never meets half
# a guest.
_RECEIVE = """\
set -e
umask 077
mkdir -p "$1"
part="$1/.$2.$$"
trap 'rm -f "$part"' EXIT
cat >"$part"
echo "$2  $part" | sha256sum -c - >/dev/null
mv -f "$part" "$1/$2.pyz"
trap - EXIT
"""

_NO_FILE = re.compile(r"can't (open file|find '__main__' module)|zipimport|not a Zip file", re.IGNORECASE)


Progress = Callable[[int, int], None]


class GuestClient:
    """The guest of one target, over one shell. Safe to use from several threads."""

    def __init__(self, shell: Shell, target: Target, *, guest: GuestFile | None = None) -> None:
        self.name = shell.name
        self._shell = shell
        self._target = target
        self._guest = guest or build_guest()
        self._is_ensured = False

    @property
    def state_dir(self) -> str:
        """The state directory as the guest gets it; `~` is expanded only where it is this machine's."""
        is_here = self._target.host is None and self._target.ct is None
        return os.path.expanduser(self._target.state_dir) if is_here else self._target.state_dir  # noqa: PTH111

    @property
    def path(self) -> str:
        """Where the guest lies there."""
        return f"{self.state_dir}/guest/{self._guest.sha256}.pyz"

    def argv(self, verb: str) -> tuple[str, ...]:
        """Return the guest's exact argv for a verb, without the way there."""
        return ("env", "LC_ALL=C.UTF-8", self._target.guest_python, self.path, verb)

    def ensure(self) -> bool:
        """Put the guest there unless it is there whole; returns whether it had to be sent.

        Raises:
            GuestRefused: There is no space for it (reason `no_space`).
            BlindError: The way there broke, or the folder cannot be written.
        """
        if self._is_ensured:
            return False
        result = self._shell.run(("sha256sum", self.path), timeout_s=CHECK_TIMEOUT_S)
        is_there = (
            result.is_success and result.stdout.split(b" ")[0].lstrip(b"\\") == self._guest.sha256.encode()
        )
        if not is_there:
            self._push()
        self._is_ensured = True
        return not is_there

    def _push(self) -> None:
        folder = str(Path(self.path).parent)
        argv = ("sh", "-c", _RECEIVE, "receive", folder, self._guest.sha256)
        result = self._shell.run(argv, stdin=self._guest.data, timeout_s=PUSH_TIMEOUT_S)
        if result.is_success:
            return
        said = printable(result.stderr_text()) or f"exit code {result.exit_code}"
        if "No space left" in said or "Disk quota exceeded" in said:
            raise GuestRefused(
                f"{self.name}: no space for the guest in {folder}: {said}",
                reason="no_space",
                hint="free some space there, or give another --state-dir",
            )
        raise GuestError(
            f"{self.name}: the guest cannot be put into {folder}: {said}",
            hint="is the state directory on a writable file system?",
        )

    def call(
        self,
        verb: str,
        request: Mapping[str, Any] | None = None,
        *,
        payload: Readable | bytes | None = None,
        size: int | None = None,
        timeout_s: float = 30.0,
        progress: Progress | None = None,
    ) -> list[Message]:
        """Ask once and return every line of the answer.

        `state_dir` is added to the request. `payload` follows it on stdin; `size` is its length in bytes,
        needed for `progress(sent, total)` if it is not bytes.

        Raises:
            GuestRefused: The guest said no; `reason` is its code.
            GuestError: No guest, no python3, or no protocol.
            BlindError: The way there broke.
        """
        stdin = _request(verb, {"state_dir": self.state_dir, **(request or {})}, payload, size, progress)
        was_sent = self.ensure()
        result = self._shell.run(self.argv(verb), stdin=stdin, timeout_s=timeout_s)
        if not was_sent and payload is None and not result.stdout and _NO_FILE.search(result.stderr_text()):
            self._is_ensured = False  # somebody cleaned up behind us
            self.ensure()
            stdin = _request(verb, {"state_dir": self.state_dir, **(request or {})}, None, None, None)
            result = self._shell.run(self.argv(verb), stdin=stdin, timeout_s=timeout_s)
        return self._answer(verb, result)

    def _answer(self, verb: str, result: Result) -> list[Message]:
        decoder = Decoder()
        messages: list[Message] = []
        try:
            for line in result.stdout.splitlines():
                messages.append(decoder.decode(line))
        except WireError as cause:
            raise GuestError(
                f"{self.name}: guest {verb}: {cause}", hint=last_words(result.stderr_text())
            ) from cause
        if messages and messages[-1]["type"] == "error":
            raise refusal(self.name, messages[-1])
        last = messages[-1]["type"] if messages else None
        if result.exit_code != 0 or last is None or last != LAST.get(verb, last):
            raise crash(self.name, verb, result.exit_code, result.stderr_text())
        return messages

    def watch(self, request: Mapping[str, Any] | None = None, *, verb: str = "watch") -> GuestStream:
        """Start a streaming verb (`watch`, or `tail` with `follow`) and return its stream.

        Raises:
            BlindError: The way there broke.
        """
        self.ensure()
        stream = GuestStream(self.name, verb, self._shell.stream(self.argv(verb)), self._forget)
        stream.send(verb, {"state_dir": self.state_dir, **(request or {})})
        return stream

    def _forget(self) -> None:
        self._is_ensured = False


def _request(
    verb: str,
    body: Mapping[str, Any],
    payload: Readable | bytes | None,
    size: int | None,
    progress: Progress | None,
) -> bytes | Readable:
    line = Encoder().encode(verb, body)
    if payload is None:
        return line
    return _Upload(line, payload, size, progress)


class _Upload:
    """A request line and the bytes behind it, as one thing to read."""

    def __init__(
        self, line: bytes, payload: Readable | bytes, size: int | None, progress: Progress | None
    ) -> None:
        self._line = line
        self._payload = payload
        self._total = len(payload) if isinstance(payload, bytes) else size or 0
        self._sent = 0
        self._progress = progress

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes."""
        if self._line:
            part, self._line = self._line[:size], self._line[size:]
            return part
        if isinstance(self._payload, bytes):
            part = self._payload[self._sent : self._sent + size]
        else:
            part = self._payload.read(size)
        self._sent += len(part)
        if part and self._progress is not None:
            self._progress(self._sent, self._total)
        return part
