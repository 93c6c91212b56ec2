"""LocalStream: a program of this machine that keeps running."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from typing import IO

from orchestrator.connection.shell import Lines, Tail, summary
from orchestrator.errors import GuestError

CHUNK_BYTES = 64 * 1024


class LocalStream:
    """A running program of this machine."""

    def __init__(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self._name = name
        self._process = process
        self._lines = Lines()
        self._stderr = Tail()
        self._send_lock = threading.Lock()
        self._read_lock = threading.Lock()
        self._is_closing = False
        self._selector = selectors.DefaultSelector()
        for pipe, feed in ((process.stdout, self._lines.feed), (process.stderr, self._stderr.feed)):
            if pipe is not None:
                self._selector.register(pipe, selectors.EVENT_READ, feed)

    def send(self, data: bytes) -> None:
        """See `Stream.send`."""
        pipe = self._process.stdin
        with self._send_lock:
            try:
                view = memoryview(data)
                while view and pipe is not None:
                    view = view[pipe.write(view) :]
            except (OSError, ValueError) as cause:
                raise GuestError(
                    f"{self._name}: {summary(self._argv)} takes no more input: {self._why()}"
                ) from cause

    @property
    def _argv(self) -> tuple[str, ...]:
        args = self._process.args
        return tuple(str(word) for word in args) if isinstance(args, (list, tuple)) else (str(args),)

    def _why(self) -> str:
        code = self._process.poll()
        tail = self._stderr.text().strip()
        return f"exit code {code}{f': {tail}' if tail else ''}"

    def close_stdin(self) -> None:
        """See `Stream.close_stdin`."""
        if self._process.stdin is not None:
            close_quietly(self._process.stdin)

    def read_line(self, timeout_s: float) -> bytes | None:
        """See `Stream.read_line`."""
        with self._read_lock:
            return self._read_line(time.monotonic() + timeout_s)

    def _read_line(self, deadline: float) -> bytes | None:
        while True:
            line = self._lines.pop()
            if line is not None:
                return line
            if self._is_closing or not self._selector.get_map():
                rest = self._lines.rest()
                if not rest:
                    self._reap()
                return rest
            left = deadline - time.monotonic()
            # Not longer, so that another thread's close() is seen.
            ready = self._selector.select(min(0.2, max(0.0, left)))
            if left <= 0:
                return None
            for key, _ in ready:
                data = os.read(key.fd, CHUNK_BYTES)
                if data:
                    key.data(data)
                else:
                    self._selector.unregister(key.fileobj)

    def _reap(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):  # it closed its output and lives on
            self._process.wait(2.0)

    def stderr_tail(self) -> str:
        """See `Stream.stderr_tail`."""
        return self._stderr.text()

    @property
    def exit_code(self) -> int | None:
        """See `Stream.exit_code`; a signal S is 128 + S."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def close(self) -> None:
        """See `Stream.close`; a program that does not end by itself within 2 s is killed."""
        self._is_closing = True
        self.close_stdin()
        with self._read_lock:
            self._selector.close()
            for pipe in (self._process.stdout, self._process.stderr):
                if pipe is not None:
                    close_quietly(pipe)
        self._reap()
        if self._process.poll() is None:
            kill(self._process)
            self._process.wait()


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill it with its children, such as pct's lxc-attach; its session is its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def close_quietly(pipe: IO[bytes]) -> None:
    """Close a pipe whose other end may be gone."""
    with contextlib.suppress(OSError):
        pipe.close()
