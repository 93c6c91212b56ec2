"""HostShell: a host over ssh."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import paramiko

from orchestrator.connection.local import chunks, too_much
from orchestrator.connection.quoting import command_line
from orchestrator.connection.shell import MAX_OUTPUT_BYTES, Lines, Result, Stdin, Tail, check_argv, summary
from orchestrator.connection.translate import translating
from orchestrator.errors import BlindError, CommandTimeout, GuestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.connection.pool import Connections, Lease
    from orchestrator.connection.ssh import Login

CHUNK_BYTES = 64 * 1024
INLINE_BYTES = 16 * 1024  # below any ssh window, so writing it cannot block
STATUS_S = 5.0  # how long after the end of output the exit status may come
SEND_S = 15.0
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
            _exec(lease, command_line(words), min(START_S, deadline - time.monotonic()))
        except BaseException:
            lease.release()
            raise
        return _Pump(lease, deadline)

    def stream(self, argv: Sequence[str]) -> HostStream:
        """See `Shell.stream`."""
        words = check_argv(argv)
        lease = self._connections.lease(self._login)
        try:
            _exec(lease, command_line(words), START_S)
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


def _exec(lease: Lease, command: str, limit_s: float) -> None:
    """Start the command. paramiko waits for sshd's yes without end, so a timer closes the channel."""
    is_late = threading.Event()

    def give_up() -> None:
        is_late.set()
        lease.release()

    timer = threading.Timer(max(0.05, limit_s), give_up)
    timer.daemon = True
    timer.start()
    try:
        with translating(lease.connection.login.name):
            lease.channel.exec_command(command)
    except BlindError as cause:
        if is_late.is_set():
            where = lease.connection.login.name
            raise CommandTimeout(f"{where}: sshd did not start the command within {limit_s:.0f} s") from cause
        raise
    finally:
        timer.cancel()


class _Channel:
    """What run and stream share: one reader for stdout and stderr, and the exit status."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self._channel = lease.channel
        self._event = threading.Event()
        self._channel.in_buffer.set_event(self._event)
        self._channel.in_stderr_buffer.set_event(self._event)

    def read_ready(self) -> tuple[bytes, bytes]:
        """Return what came on stdout and stderr, without waiting."""
        with translating(self.lease.connection.login.name):
            out = self._channel.recv(CHUNK_BYTES) if self._channel.recv_ready() else b""
            err = self._channel.recv_stderr(CHUNK_BYTES) if self._channel.recv_stderr_ready() else b""
        return out, err

    @property
    def is_ended(self) -> bool:
        """Nothing more will come; what came may still have to be read."""
        return bool(self._channel.eof_received or self._channel.closed)

    def wait(self, limit_s: float) -> None:
        """Wait until something came or it ended."""
        # The event is cleared whenever one of the two buffers runs empty, so never trust it for long.
        self._event.wait(min(max(limit_s, 0.0), 0.5))

    def status(self, limit_s: float) -> int | None:
        """Return the exit code after the end of output; None if none comes, as after a signal.

        Raises:
            HostUnreachable: The connection was lost before it came.
        """
        self._channel.status_event.wait(max(0.0, min(limit_s, STATUS_S)))
        if self._channel.exit_status != -1:
            return int(self._channel.exit_status)
        if not self.lease.connection.is_alive:
            raise self.lease.connection.lost()
        return None


class _Pump(_Channel):
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
            if out or err:
                continue
            if is_ended:
                return self.status(self._deadline - time.monotonic())
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.wait(left)


class HostStream(_Channel):
    """A command that keeps running on a host."""

    def __init__(self, name: str, lease: Lease) -> None:
        super().__init__(lease)
        self._name = name
        self._lines = Lines()
        self._stderr = Tail()
        self._send_lock = threading.Lock()
        self._status: int | None = None
        self._is_done = False

    def send(self, data: bytes) -> None:
        """See `Stream.send`."""
        try:
            with self._send_lock:
                self._channel.settimeout(SEND_S)
                self._channel.sendall(data)
        except TimeoutError as cause:
            raise CommandTimeout(f"{self._name}: it took no input for {SEND_S:g} s") from cause
        except (OSError, EOFError, paramiko.SSHException) as cause:
            if not self.lease.connection.is_alive:
                raise self.lease.connection.lost() from cause
            tail = self.stderr_tail().strip()
            raise GuestError(f"{self._name}: it takes no more input{f': {tail}' if tail else ''}") from cause

    def close_stdin(self) -> None:
        """See `Stream.close_stdin`."""
        try:
            self._channel.shutdown_write()
        except (OSError, EOFError, paramiko.SSHException):
            return

    def read_line(self, timeout_s: float) -> bytes | None:
        """See `Stream.read_line`."""
        deadline = time.monotonic() + timeout_s
        while True:
            line = self._lines.pop()
            if line is not None:
                return line
            if self._is_done:
                return self._lines.rest()
            is_ended = self.is_ended
            out, err = self.read_ready()
            self._lines.feed(out)
            self._stderr.feed(err)
            if out or err:
                continue
            if is_ended:
                self._status = self.status(STATUS_S)
                self._is_done = True
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self.wait(left)

    def stderr_tail(self) -> str:
        """See `Stream.stderr_tail`."""
        return self._stderr.text()

    @property
    def exit_code(self) -> int | None:
        """See `Stream.exit_code`."""
        return self._status

    def close(self) -> None:
        """See `Stream.close`."""
        self.lease.release()
