"""Runs the guest as the near side would, on this machine: real processes, a tmux server of its own."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import wire
from orchestrator.guest import processes
from tests.cli import LONG_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
STANDIN = str(ROOT / "tests" / "standin.py")
Message = dict[str, Any]


class Guest:
    """One container's guest: a state directory and a tmux socket directory."""

    def __init__(self, base: Path, sockets: Path) -> None:
        self.state = base / "state"
        self.cue = base / "cue"  # for a stand-in's --cue
        self.env = {**os.environ, "PYTHONPATH": str(ROOT), "TMUX_TMPDIR": str(sockets)}
        self.env.pop("TMUX", None)
        self.command = [sys.executable, "-m", "orchestrator.guest"]

    def dir(self, run: str = "r", attempt: int | None = None) -> Path:
        path = self.state / "runs" / run
        return path if attempt is None else path / "attempts" / str(attempt)

    def line(self, verb: str, **request: Any) -> bytes:
        return wire.Encoder().encode(verb, {"state_dir": str(self.state), **request})

    def ask(self, verb: str, raw: bytes = b"", **request: Any) -> list[Message]:
        """Return all lines of the answer; an unasked-for traceback fails the test."""
        done = subprocess.run(
            [*self.command, verb], input=self.line(verb, **request) + raw, capture_output=True, env=self.env,
            cwd="/", timeout=LONG_S, check=False,
        )  # fmt: skip
        assert not done.stderr, done.stderr.decode()
        decoder = wire.Decoder()
        lines = [decoder.decode(line) for line in done.stdout.splitlines()]
        is_refused = bool(lines) and "code" in lines[-1] and lines[-1]["type"] == "error"
        assert done.returncode == (3 if is_refused else 0)
        return lines

    def start(self, *options: object, run: str = "r", attempt: int = 1, **request: Any) -> Message:
        """Start the stand-in (or `argv`); the last line."""
        argv = request.pop("argv", [sys.executable, STANDIN, *map(str, options)])
        spec = {"argv": argv, "kind": "trainer", "stop_grace_s": 5.0}
        return self.ask("start", run=run, attempt=attempt, spec=spec, **request)[-1]

    def stop(self, run: str = "r", grace_s: float = 5.0, by: str = "user") -> Message:
        return self.ask("stop", run=run, by=by, reason="the test says so", grace_s=grace_s)[-1]

    def look(self, run: str = "r") -> dict[str, Message]:
        return {line["type"]: line for line in self.ask("look", run=run, log_bytes=1 << 20)}

    def alive(self, run: str = "r") -> Message:
        return dict(self.look(run)["run"]["alive"])

    def file(self, name: str, attempt: int = 1, run: str = "r") -> Message:
        return dict(json.loads((self.dir(run, attempt) / name).read_text()))

    def exit(self, attempt: int = 1, run: str = "r") -> Message:
        """Wait for exit.json and for the supervisor to end; its content."""
        path = self.dir(run, attempt) / "exit.json"
        wait_until(path.exists)
        info = self.dir(run, attempt) / "attempt.json"
        if info.exists():
            wait_until(lambda: processes.attempt_roots(self.dir(run, attempt)).supervisor is None)
        return self.file("exit.json", attempt, run)

    def tmux(self, *arguments: str) -> str:
        command = ["tmux", "-Ldflashctl", *arguments]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, check=False).stdout

    def watch(
        self, runs: Message | None = None, *, gpus: bool = False, watcher: Message | None = None, **env: str
    ) -> Watch:
        return Watch(self, runs, gpus=gpus, env=env, watcher=watcher)

    def close(self) -> list[int]:
        """Kill what is left; the pids that had to be killed."""
        self.tmux("kill-server")
        killed = []
        for _ in range(50):
            mark = str(self.state / "runs") + "/"
            table = processes.scan()
            left = [row.pid for row in table.values() if row.mark and row.mark.startswith(mark)]
            for pid in left:
                with suppress(ProcessLookupError):  # its parent's death may be its own
                    os.kill(pid, signal.SIGKILL)
            killed += left
            if not left:
                break
            time.sleep(0.05)
        return killed


class Watch:
    """A live `guest watch`."""

    def __init__(
        self,
        guest: Guest,
        runs: Message | None,
        *,
        gpus: bool,
        env: dict[str, str],
        watcher: Message | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            [*guest.command, "watch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**guest.env, **env}
        )
        self._encoder, self._decoder, self._buffer = wire.Encoder(), wire.Decoder(), b""
        self.lines: list[Message] = []
        self.send("watch", state_dir=str(guest.state), runs=runs, gpus=gpus, watcher=watcher)

    def send(self, kind: str, **fields: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(self._encoder.encode(kind, fields))
        self.process.stdin.flush()

    def until(self, wanted: Callable[[Message], Any] | str, limit_s: float = LONG_S) -> Message:
        """Read on until a line is `wanted` (or of that type); that line."""
        is_wanted = (lambda m: m["type"] == wanted) if isinstance(wanted, str) else wanted
        deadline = time.monotonic() + limit_s
        while True:
            line = self.read(deadline - time.monotonic())
            assert line is not None, f"no such line; got {[m['type'] for m in self.lines[-30:]]}"
            if is_wanted(line):
                return line

    def read(self, limit_s: float) -> Message | None:
        """The next line, or None at the end or the limit."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._buffer:
            if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            piece = os.read(fd, 1 << 16)
            if not piece:
                return None
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\n", 1)
        self.lines.append(self._decoder.decode(line))
        return self.lines[-1]

    def log(self, attempt: int = 1, run: str = "r") -> bytes:
        """The log as it arrived; a gap or a repetition fails."""
        found, at = b"", None
        for m in self.lines:
            if m["type"] == "log" and (m["run"], m["attempt"]) == (run, attempt):
                assert at is None or m["offset"] == at, f"offset {m['offset']} where {at} was due"
                data = wire.unpack_bytes(m["data"])
                found, at = found + data, m["offset"] + len(data)
        return found

    def close(self) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait(LONG_S)
        self.process.stdout.close()
        return code


def lend(base: Path) -> Iterator[Guest]:
    """A guest for one test; what is left of its runs is killed."""
    sockets = Path(tempfile.mkdtemp(prefix="dfg", dir="/tmp"))  # a socket's path is at most 107 bytes
    guest = Guest(base, sockets)
    try:
        yield guest
    finally:
        guest.close()
        shutil.rmtree(sockets, ignore_errors=True)


def wait_until(is_true: Callable[[], Any], limit_s: float = LONG_S) -> None:
    deadline = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def is_running(pid: int) -> bool:
    row = processes.read_stat(pid)
    return row is not None and not row.is_zombie


HAS_TMUX = shutil.which("tmux") is not None
