"""`dflashctl` as processes that are forked from one which has read the program already.

A start costs most of a second of CPU, and a night of chaos starts thousands. What runs is the program's own
`main` in a process of its own; only the imports are shared.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Child:
    """One process of the program; its exit code is in a file once it has ended."""

    pid: int
    out: Path
    err: Path

    @property
    def code(self) -> int | None:
        """The exit code, the signal's number below zero, or None while it runs."""
        try:
            return int(self.out.with_suffix(".code").read_text())
        except FileNotFoundError:
            return None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            if self.code is None:
                os.kill(self.pid, number)

    def wait(self, limit_s: float) -> int | None:
        """Wait for the end; None if it did not come."""
        deadline = time.monotonic() + limit_s
        while self.code is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.code


class Nursery:
    """Starts children; any thread may ask."""

    def __init__(self, preload: Path, env: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=ROOT,
            env={**os.environ, **env, "LD_PRELOAD": str(preload), "DFLASHCTL_CHAOS_CLOCK": "/dev/null/none"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, out: Path, clock: Path
    ) -> Child:
        """Start the program with these words."""
        err = out.with_suffix(".err")
        asked = {
            "argv": list(argv), "env": dict(env), "cwd": str(cwd), "out": str(out), "err": str(err),
            "clock": str(clock),
        }  # fmt: skip
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        assert answer, "the nursery has ended"
        return Child(int(answer), out, err)

    def close(self) -> None:
        """End it and every child."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def _preload() -> None:
    import orchestrator.cli.app
    import orchestrator.cli.watching
    import orchestrator.connection
    import orchestrator.operate
    import orchestrator.record
    import orchestrator.site
    import orchestrator.view.live
    import orchestrator.view.plain
    import orchestrator.watch  # noqa: F401


def _become(asked: Mapping[str, Any]) -> None:
    import ctypes

    from orchestrator.cli import main

    for number, path in ((1, asked["out"]), (2, asked["err"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    ctypes.CDLL(None).dflashctl_clock_open(asked["clock"].encode())
    sys.argv = ["dflashctl", *asked["argv"]]
    code = 1
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _reap(running: dict[int, Path]) -> None:
    for pid in list(running):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            path = running.pop(pid).with_suffix(".code")
            path.with_suffix(".part").write_text(str(os.waitstatus_to_exitcode(status)))
            path.with_suffix(".part").replace(path)


def serve() -> None:
    """Fork a child for each line of standard input, until it ends."""
    _preload()
    asks, answers = sys.stdin.fileno(), os.dup(1)
    running: dict[int, Path] = {}
    waiting = b""
    while True:
        ready, _, _ = select.select([asks], [], [], 0.05)
        _reap(running)
        if not ready:
            continue
        piece = os.read(asks, 1 << 16)
        if not piece:
            break
        *lines, waiting = (waiting + piece).split(b"\n")
        for line in lines:
            asked = json.loads(line)
            pid = os.fork()
            if pid == 0:
                os.close(answers)
                os.close(asks)
                _become(asked)
            running[pid] = Path(asked["out"])
            os.write(answers, f"{pid}\n".encode())
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    serve()
