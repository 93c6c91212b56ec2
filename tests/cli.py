"""The program as a person runs it: a process with its own record, home and inventory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
LONG_S = 600.0  # for what has to come about: far beyond what it takes, since a busy machine is no failure


class Cli:
    """Runs `dflashctl` with `options` (host, port, ...) put after the verbs that take them."""

    def __init__(self, home: Path, where: Sequence[str] = (), env: Mapping[str, str] | None = None) -> None:
        self.home = home
        self.where = tuple(where)
        self.root = home  # of the container's file system, as this machine sees it
        self.watches: list[Watching] = []
        (home / "inventory").mkdir(parents=True, exist_ok=True)
        self.env = {
            **os.environ,
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "DFLASHCTL_INVENTORY": str(home / "inventory"),
            "PYTHONPATH": str(ROOT),
            "NO_COLOR": "1",
            "COLUMNS": "200",
            **(env or {}),
        }

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "orchestrator", *words]

    def run(
        self, *words: str, code: int | None = 0, timeout: float = LONG_S
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end; `code` None takes any exit code."""
        done = subprocess.run(
            self.argv(*words),
            env=self.env,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert code is None or done.returncode == code, (
            f"exit {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        )
        assert "Traceback (most recent call last)" not in done.stderr, done.stderr[-4000:]
        return done

    def json(self, *words: str, code: int | None = 0, timeout: float = LONG_S) -> dict[str, Any]:
        body = json.loads(self.run(*words, "--json", code=code, timeout=timeout).stdout)
        assert isinstance(body, dict)
        return body

    def launch(
        self, *words: str, code: int | None = 0, timeout: float = LONG_S
    ) -> subprocess.CompletedProcess[str]:
        """Launch at the place given; `--` and what follows stay last."""
        flags = words[: words.index("--")] if "--" in words else words
        rest = words[len(flags) :]
        return self.run("launch", *self.where, *flags, *rest, code=code, timeout=timeout)

    def end_watches(self) -> None:
        """Kill every watch that still runs."""
        for watch in self.watches:
            if watch.process.poll() is None:
                watch.kill()

    def watch(self, *words: str) -> Watching:
        return Watching(self, ("watch", *words, "--json"))


class Watching:
    """A watch in the background whose events are read as they come."""

    def __init__(self, cli: Cli, words: Sequence[str]) -> None:
        self.out = cli.home / f"watch-{time.monotonic_ns()}.jsonl"
        self.err = self.out.with_suffix(".err")
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                cli.argv(*words), env=cli.env, cwd=cli.home, stdout=out, stderr=err, stdin=subprocess.DEVNULL
            )
        cli.watches.append(self)

    def events(self) -> list[dict[str, Any]]:
        lines = self.out.read_bytes().split(b"\n")[:-1]
        return [json.loads(line) for line in lines]

    def wait_for(self, test: Callable[[dict[str, Any]], bool], timeout: float = LONG_S) -> dict[str, Any]:
        """Return the first event that passes."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            found = next((event for event in self.events() if test(event)), None)
            if found is not None:
                return found
            if self.process.poll() is not None and not any(map(test, self.events())):
                break
            time.sleep(0.05)
        raise AssertionError(f"no such event; {self.story()}")

    def end(self, timeout: float = LONG_S) -> int:
        """Wait for the watch's own end and return its exit code."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the watch did not end; {self.story()}") from None

    def kill(self) -> None:
        """SIGKILL, as a power cut would."""
        self.process.kill()
        self.process.wait()

    def story(self) -> str:
        told = [f"{e['kind']}: {e['text']}" for e in self.events() if e["kind"] not in ("metrics",)][-25:]
        return f"code {self.process.poll()}; events {told}; stderr {self.err.read_text()[-3000:]}"


def is_kind(kind: str, **detail: Any) -> Callable[[dict[str, Any]], bool]:
    """Return a test for an event of a kind whose detail has these values."""
    return lambda e: e["kind"] == kind and all(e["detail"].get(k) == v for k, v in detail.items())
