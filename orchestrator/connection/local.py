"""LocalShell: the machine that dflashctl runs on. No ssh, no shell in between."""

from __future__ import annotations

import os
import selectors
import subprocess
import threading
import time
from typing import IO, TYPE_CHECKING

from orchestrator.connection.localstream import CHUNK_BYTES, LocalStream, close_quietly, kill
from orchestrator.connection.shell import MAX_OUTPUT_BYTES, Result, check_argv, chunks, summary, too_much
from orchestrator.errors import CommandTimeout, GuestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.connection.shell import Stdin

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
                kill(process)
                raise CommandTimeout(
                    f"{self.name}: no answer within {timeout_s:g} s to {summary(words)}"
                ) from cause
            except OverflowError as cause:
                kill(process)
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
            if left <= 0:
                raise TimeoutError
            ready = selector.select(left)
            for key, _ in ready:
                data = os.read(key.fd, CHUNK_BYTES)
                parts[key.data].append(data)
                total += len(data)
                if total > MAX_OUTPUT_BYTES:
                    raise OverflowError
                if not data:
                    selector.unregister(key.fileobj)
    return b"".join(parts[0]), b"".join(parts[1])
