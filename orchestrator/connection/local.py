"""LocalShell: the machine that dflashctl runs on. No ssh, no shell in between."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from typing import IO, TYPE_CHECKING

from orchestrator.connection.shell import (
    MAX_OUTPUT_BYTES,
    Lines,
    Readable,
    Result,
    Stdin,
    Tail,
    check_argv,
    summary,
)
from orchestrator.errors import CommandTimeout, GuestError

if TYPE_CHECKING:
    from collections.abc import Sequence

CHUNK_BYTES = 64 * 1024
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"  # pct lives there, and cron's PATH does not say so


class LocalShell:
    """Runs an argv here."""

    def __init__(self, name: str = "local") -> None:
        self.name = name

    def run(self, argv: Sequence[str], *, stdin: Stdin = None, timeout_s: float) -> Result:
        """See `Shell.run`. A program that is not there ends with 127, as a shell would have it."""
        words = check_argv(argv)
        started = time.monotonic()
        try:
            process = _start(words, None if stdin is not None else subprocess.DEVNULL)
        except OSError as cause:
            return _not_started(words, cause, time.monotonic() - started)
        with process:
            feeder = _feed(process, stdin)
            try:
                stdout, stderr = _drain(process, started + timeout_s)
                process.wait(max(0.0, started + timeout_s - time.monotonic()))
            except (TimeoutError, subprocess.TimeoutExpired) as cause:
                _kill(process)
                raise CommandTimeout(
                    f"{self.name}: no answer within {timeout_s:g} s to {summary(words)}"
                ) from cause
            except OverflowError as cause:
                _kill(process)
                raise too_much(self.name, words) from cause
            finally:
                if feeder is not None:
                    feeder.join(1.0)
        code = process.returncode
        return Result(
            argv=words,
            exit_code=code if code >= 0 else 128 - code,
            stdout=stdout,
            stderr=stderr,
            duration_s=time.monotonic() - started,
        )

    def stream(self, argv: Sequence[str]) -> LocalStream:
        """See `Shell.stream`.

        Raises:
            GuestError: The program is not there.
        """
        words = check_argv(argv)
        try:
            return LocalStream(self.name, _start(words, None))
        except OSError as cause:
            raise GuestError(f"{self.name}: {words[0]}: {cause.strerror}") from cause

    def close(self) -> None:
        """Nothing is held."""


def _start(words: tuple[str, ...], stdin: int | None) -> subprocess.Popen[bytes]:
    path = os.environ.get("PATH", os.defpath)
    missing = [part for part in SBIN.split(":") if part not in path.split(":")]
    env = {**os.environ, "PATH": ":".join([path, *missing])}
    return subprocess.Popen(
        words,
        stdin=subprocess.PIPE if stdin is None else stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        start_new_session=True,  # a Ctrl-C meant for dflashctl must not reach it
        bufsize=0,
    )


def too_much(name: str, words: Sequence[str]) -> GuestError:
    """Return the error for a command that prints without end."""
    return GuestError(
        f"{name}: {summary(words)} printed more than {MAX_OUTPUT_BYTES >> 20} MiB; it was cut off"
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill it with its children, such as pct's lxc-attach; its session is its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _not_started(words: tuple[str, ...], cause: OSError, duration_s: float) -> Result:
    is_missing = isinstance(cause, FileNotFoundError)
    reason = "command not found" if is_missing else cause.strerror or str(cause)
    text = f"{words[0]}: {reason}\n".encode("utf-8", "surrogateescape")
    return Result(
        argv=words, exit_code=127 if is_missing else 126, stdout=b"", stderr=text, duration_s=duration_s
    )


def _feed(process: subprocess.Popen[bytes], stdin: Stdin) -> threading.Thread | None:
    """Write standard input from a thread: a program may answer before it has read all of it."""
    pipe = process.stdin
    if pipe is None or stdin is None:
        return None

    def copy(pipe: IO[bytes]) -> None:
        try:
            for chunk in chunks(stdin):
                view = memoryview(chunk)
                while view:
                    view = view[pipe.write(view) :]
        except (OSError, ValueError):
            pass  # it ended without reading all; its exit code says why
        finally:
            close_quietly(pipe)

    thread = threading.Thread(target=copy, args=(pipe,), daemon=True, name="stdin")
    thread.start()
    return thread


def chunks(stdin: bytes | Readable) -> list[bytes] | _Chunks:
    """Return what to write, piece by piece."""
    return [stdin] if isinstance(stdin, bytes) else _Chunks(stdin)


class _Chunks:
    def __init__(self, source: Readable) -> None:
        self._source = source

    def __iter__(self) -> _Chunks:
        return self

    def __next__(self) -> bytes:
        chunk = self._source.read(CHUNK_BYTES)
        if not chunk:
            raise StopIteration
        return chunk


def close_quietly(pipe: IO[bytes]) -> None:
    """Close a pipe whose other end may be gone."""
    with contextlib.suppress(OSError):
        pipe.close()


def _drain(process: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bytes]:
    """Read stdout and stderr together to their ends."""
    parts: dict[int, list[bytes]] = {0: [], 1: []}
    total = 0
    with selectors.DefaultSelector() as selector:
        for which, pipe in enumerate((process.stdout, process.stderr)):
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ, which)
        while selector.get_map():
            left = deadline - time.monotonic()
            ready = selector.select(max(0.0, left))
            if not ready and left <= 0:
                raise TimeoutError
            for key, _ in ready:
                data = os.read(key.fd, CHUNK_BYTES)
                parts[key.data].append(data)
                total += len(data)
                if total > MAX_OUTPUT_BYTES:
                    raise OverflowError
                if not data:
                    selector.unregister(key.fileobj)
    return b"".join(parts[0]), b"".join(parts[1])


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
            # Not longer, so that another thread's close() is seen.
            ready = self._selector.select(min(0.2, max(0.0, deadline - time.monotonic())))
            if not ready and time.monotonic() >= deadline:
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
            _kill(self._process)
            self._process.wait()
