"""What runs on a host over one channel: how it is started, read, and kept as a stream."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import paramiko

from orchestrator.connection.shell import CHUNK_BYTES, Lines, Tail
from orchestrator.connection.translate import translating
from orchestrator.errors import BlindError, CommandTimeout, GuestError

if TYPE_CHECKING:
    from orchestrator.connection.pool import Lease

STATUS_S = 5.0  # how long after the end of output the exit status may come
SEND_S = 15.0


def execute(lease: Lease, command: str, limit_s: float) -> None:
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


class Reader:
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


class HostStream(Reader):
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
            if (out or err) and time.monotonic() < deadline:
                continue
            if is_ended and not (out or err):
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
