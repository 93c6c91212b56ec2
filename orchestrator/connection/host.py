"""HostShell: a host over ssh."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import paramiko

from orchestrator.connection.hoststream import HostStream, Reader, execute
from orchestrator.connection.quoting import command_line
from orchestrator.connection.shell import (
    MAX_OUTPUT_BYTES,
    Result,
    Stdin,
    check_argv,
    chunks,
    summary,
    too_much,
)
from orchestrator.errors import CommandTimeout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.connection.pool import Connections, Lease
    from orchestrator.connection.route import Login

INLINE_BYTES = 16 * 1024  # below any ssh window, so writing it cannot block
START_S = 15.0


class HostShell:
    """Runs an argv on a host, whatever its login shell is."""

    def __init__(self, login: Login, connections: Connections) -> None:
        self.name = login.name
        self._login = login
        self._connections = connections
        self._is_open = True
        connections.join(login)

    def run(self, argv: Sequence[str], *, stdin: Stdin = None, timeout_s: float) -> Result:
        """See `Shell.run`."""
        words = check_argv(argv)
        started = time.monotonic()
        pump = self._start(words, timeout_s)
        try:
            pump.feed(stdin)
            code = pump.drain()
            return Result(
                argv=words,
                exit_code=code,
                stdout=b"".join(pump.stdout),
                stderr=b"".join(pump.stderr),
                duration_s=time.monotonic() - started,
            )
        except TimeoutError as cause:
            raise CommandTimeout(
                f"{self.name}: no answer within {timeout_s:g} s to {summary(words)}",
                hint="it may still be running there",
            ) from cause
        except OverflowError as cause:
            raise too_much(self.name, words) from cause
        finally:
            pump.lease.release()

    def _start(self, words: tuple[str, ...], timeout_s: float) -> _Pump:
        lease = self._connections.lease(self._login)
        deadline = time.monotonic() + timeout_s  # connecting has limits of its own
        try:
            execute(lease, command_line(words), min(START_S, deadline - time.monotonic()))
        except BaseException:
            lease.release()
            raise
        return _Pump(lease, deadline)

    def stream(self, argv: Sequence[str]) -> HostStream:
        """See `Shell.stream`."""
        words = check_argv(argv)
        lease = self._connections.lease(self._login)
        try:
            execute(lease, command_line(words), START_S)
        except BaseException:
            lease.release()
            raise
        return HostStream(self.name, lease)

    def reconnect(self) -> None:
        """Drop the connection, for a watcher that had no answer over it; the next command opens a new one."""
        self._connections.drop(self._login)

    def close(self) -> None:
        """Give the connection back; the last shell of a login closes it."""
        if self._is_open:
            self._is_open = False
            self._connections.part(self._login)


class _Pump(Reader):
    """Runs one command to its end."""

    def __init__(self, lease: Lease, deadline: float) -> None:
        super().__init__(lease)
        self._deadline = deadline
        self._total = 0
        self.stdout: list[bytes] = []
        self.stderr: list[bytes] = []

    def feed(self, stdin: Stdin) -> None:
        """Write standard input and end it; what may not fit the window, from a thread."""
        if stdin is None or (isinstance(stdin, bytes) and len(stdin) <= INLINE_BYTES):
            self._write(stdin or b"")
            return
        threading.Thread(target=self._write, args=(stdin,), daemon=True, name="stdin").start()

    def _write(self, stdin: Stdin) -> None:
        try:
            for chunk in chunks(stdin or b""):
                self._channel.settimeout(max(0.1, self._deadline - time.monotonic()))
                self._channel.sendall(chunk)
            self._channel.shutdown_write()
        except (OSError, EOFError, ValueError, paramiko.SSHException):
            return  # it ended without reading all; its exit code says why

    def drain(self) -> int | None:
        """Read to the end and return the exit code.

        Raises:
            TimeoutError: The deadline passed.
            OverflowError: It printed too much.
        """
        while True:
            is_ended = self.is_ended  # asked first: what came before the end is then there to be read
            out, err = self.read_ready()
            self.stdout.append(out)
            self.stderr.append(err)
            self._total += len(out) + len(err)
            if self._total > MAX_OUTPUT_BYTES:
                raise OverflowError
            left = self._deadline - time.monotonic()
            if (out or err) and left > 0:
                continue
            if is_ended and not (out or err):
                return self.status(left)
            if left <= 0:
                raise TimeoutError
            self.wait(left)
