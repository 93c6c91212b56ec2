"""Runs on this machine itself, without ssh and container, in a tmux of the test's own."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.record import Record
from tests.cli import LONG_S, ROOT, Cli

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli import Watching

PLAYBOOK = "extends: default\nbackoff: [0s, 1s]\njitter: 0\n"
STANDIN = str(ROOT / "tests" / "standin.py")

# A stand-in whose every attempt but the last comes further than the one before, then dies.
EVER_FURTHER = """\
import os, sys
attempt, crashes, steps, step_s = int(os.environ["DFLASHCTL_ATTEMPT"]), *map(float, sys.argv[2:5])
die_at = str(int(attempt * steps // (crashes + 1)))
words = ["--steps", str(int(steps)), "--step-s", str(step_s), "--checkpoint-every", "2", "--crash-at", die_at]
words += ["--crash-attempts", str(int(crashes)), "--fx-text"]
os.execv(sys.executable, [sys.executable, sys.argv[1], *words])
"""


class Local(Cli):
    """`dflashctl --host local`, with what a test wants to know of the runs."""

    def __init__(self, home: Path, sockets: Path) -> None:
        self.state = home / "runs-here"
        self.cue = home / "cue"  # for a stand-in's --cue
        super().__init__(
            home, ("--host", "local", "--state-dir", str(self.state)), env={"TMUX_TMPDIR": str(sockets)}
        )
        self.playbook = home / "playbook.yaml"
        self.playbook.write_text(PLAYBOOK)

    def begin(self, run: str, *command: str) -> None:
        self.launch("--run", run, "--playbook", str(self.playbook), "--", *command)

    def begin_standin(self, run: str, *words: str) -> None:
        self.begin(run, "python3", STANDIN, *words)

    def begin_ever_further(self, run: str, *, crashes: int, steps: int, step_s: float) -> None:
        self.begin(run, "python3", "-c", EVER_FURTHER, STANDIN, *map(str, (crashes, steps, step_s)))

    def attempts(self, run: str) -> list[int]:
        folder = self.state / "runs" / run / "attempts"
        return sorted(int(path.name) for path in folder.iterdir())

    def attempt_info(self, run: str, attempt: int = 1) -> dict[str, Any]:
        path = self.state / "runs" / run / "attempts" / str(attempt) / "attempt.json"
        body = json.loads(path.read_text())
        assert isinstance(body, dict)
        return body

    def trainers(self, run: str) -> list[int]:
        """The pids of the run's trainers; the supervisor is none."""
        mark = f"DFLASHCTL_RUN_DIR={self.state}/runs/{run}\0".encode()
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                words = (place / "cmdline").read_bytes().split(b"\0")
                is_trainer = STANDIN.encode() in words and b"--steps" in words
                if is_trainer and mark in (place / "environ").read_bytes() + b"\0":
                    found.append(int(place.name))
            except OSError:  # it ended meanwhile
                continue
        return found

    def tmux(self, *words: str) -> None:
        subprocess.run(["tmux", "-L", "dflashctl", *words], env=self.env, check=True, capture_output=True)

    @contextmanager
    def record(self) -> Iterator[Record]:
        with Record.open(self.home / "state" / "dflashctl" / "record.sqlite3") as record:
            yield record

    def clean_up(self) -> None:
        self.end_watches()
        folder = self.state / "runs"
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            self.run("stop", path.name, "--grace", "0s", code=None)
        subprocess.run(
            ["tmux", "-L", "dflashctl", "kill-server"], env=self.env, check=False, capture_output=True
        )


@contextmanager
def local_runs(home: Path) -> Iterator[Local]:
    """A place for runs, and nothing left of it afterwards. The socket's path must be short."""
    sockets = Path(tempfile.mkdtemp(prefix="dfl-tmux-", dir="/tmp"))
    local = Local(home, sockets)
    try:
        yield local
    finally:
        local.clean_up()
        shutil.rmtree(sockets, ignore_errors=True)


class Sampler(threading.Thread):
    """Counts a run's trainers all the time."""

    def __init__(self, local: Local, run: str) -> None:
        super().__init__(daemon=True)
        self._local = local
        self._run = run
        self._ending = threading.Event()
        self.samples = 0
        self.doubles: list[list[int]] = []

    def run(self) -> None:
        while not self._ending.wait(0.05):
            found = self._local.trainers(self._run)
            self.samples += 1
            if len(found) > 1 and len(self._local.trainers(self._run)) > 1:
                self.doubles.append(found)

    def end(self) -> None:
        self._ending.set()
        self.join()
        assert self.samples > 20, "too few looks to mean anything"
        assert self.doubles == [], "two trainers at once"


def peak_mib(watch: Watching) -> float:
    """The most memory that the watch ever had."""
    assert watch.process.poll() is None, "what has ended has no memory to measure"
    text = Path(f"/proc/{watch.process.pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("VmHWM"))


def wait_until(test, timeout: float = LONG_S, what: str = "") -> None:
    deadline = time.monotonic() + timeout
    while not test():
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}"
        time.sleep(0.05)
