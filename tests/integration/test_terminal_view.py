"""The live view in a real terminal: a real run crashes in it, is relaunched, and is stopped by its keys."""

from __future__ import annotations

import re
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from orchestrator.errors import Exit
from tests.cli import LONG_S
from tests.integration.local import Local, local_runs, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9\d|10\d)[;m]")

pytestmark = pytest.mark.integration


@pytest.fixture
def local(tmp_path) -> Iterator[Local]:
    with local_runs(tmp_path) as here:
        yield here


class Terminal:
    """A tmux of 80 columns and 24 rows in which the program runs; the outer one, not that of the runs."""

    def __init__(self, local: Local, *words: str, term: str = "tmux-256color") -> None:
        self.local = local
        self.code = local.home / "code"
        self.term = term
        self.env = {key: value for key, value in local.env.items() if key not in ("COLUMNS", "TMUX")}
        self.env["TERM"] = "xterm-256color"
        self("new-session", "-d", "-s", "t", "-x", "80", "-y", "24", "-c", str(local.home),
             self.command(*words))  # fmt: skip

    def command(self, *words: str) -> str:
        return f"TERM={self.term} {' '.join(self.local.argv(*words))}; echo $? > {self.code}; sleep 3600"

    def __call__(self, *words: str) -> str:
        argv = ["tmux", "-L", "outer", "-f", "/dev/null", *words]
        return subprocess.run(
            argv, env=self.env, check=True, capture_output=True, text=True, timeout=LONG_S
        ).stdout

    def screen(self) -> str:
        return self("capture-pane", "-p", "-t", "t")

    def press(self, *keys: str) -> None:
        self("send-keys", "-t", "t", *keys)

    def wait_for(self, *words: str, timeout: float = LONG_S) -> str:
        """Return the screen that has all of the words."""
        deadline = time.monotonic() + timeout
        while not all(word in (seen := self.screen()) for word in words):
            assert time.monotonic() < deadline, f"not seen: {words}\n{seen}"
            time.sleep(0.1)
        return seen

    def exit_code(self) -> int:
        wait_until(
            lambda: self.code.exists() and self.code.read_text().strip() != "", what="the program's end"
        )
        return int(self.code.read_text())

    def end(self) -> None:
        subprocess.run(["tmux", "-L", "outer", "kill-server"], env=self.env, check=False, capture_output=True)


def test_a_run_dies_and_comes_back_in_sight_and_keys_read_and_stop_it(local):
    local.begin_standin(
        "r1", "--steps", "90000", "--step-s", "0.05", "--checkpoint-every", "5", "--crash-at", "60",
        "--crash-attempts", "1", "--fx-text",
    )  # fmt: skip
    terminal = Terminal(local, "watch")
    try:
        seen = terminal.wait_for("r1", "healthy", "q end the watch", "acts by the playbook")
        assert len(seen.splitlines()) <= 24
        terminal.wait_for("attempt 2", "healthy")  # it died meanwhile, and was relaunched
        terminal.press("3")
        terminal.wait_for("attempt 2 started by watch")
        terminal.press("/", "root", "Enter")
        terminal.wait_for("root (log byte", "RuntimeError: Detected")
        terminal.press("1")
        terminal.wait_for("training loss", "x fx_trace_race at 60")
        terminal.press("e")
        terminal.wait_for("r1: explain", "fx_trace_race in attempt 1", "the log around it", "| step ")
        terminal.press("Escape")
        terminal("resize-window", "-t", "t", "-x", "120", "-y", "40")
        terminal.wait_for("story", "loss and speed", "GPUs", "log")
        terminal.press("a")
        terminal.wait_for("[r1]", "step ")  # the run's own tmux
        terminal.press("C-b", "d")
        terminal.wait_for("q end the watch", "r1 at local")
        terminal.press("s")
        terminal.wait_for("Stop r1 at local?")
        terminal.press("n")
        terminal.wait_for("nothing is done")
        assert local.trainers("r1")
        terminal.press("s")
        terminal.wait_for("Stop r1 at local?")
        terminal.press("y")
        # Its last run has ended, so the watch ends, and what it told stays on the normal screen.
        assert terminal.exit_code() == Exit.NOT_RUNNING
        assert local.trainers("r1") == []
        told = terminal.screen()
        assert "diagnosis: dead: fx_trace_race" in told or "outcome: stopped by its user" in told
        assert "q end the watch" not in told
        terminal.code.unlink()
        terminal("respawn-pane", "-k", "-t", "t", terminal.command("watch", "r1"))
        assert terminal.exit_code() == Exit.NOT_RUNNING, "what has ended by the record is looked at as well"
    finally:
        terminal.end()


def test_top_only_looks_and_a_signal_leaves_the_terminal_as_it_was(local):
    local.begin_standin("r1", "--steps", "90000", "--step-s", "0.05", "--crash-at", "40", "--fx-text")
    terminal = Terminal(local, "top", term="vt100")
    try:
        terminal.wait_for("r1", "dead", "only looks", "an acting watch would")
        assert local.attempts("r1") == [1]
        assert not COLOUR.search(terminal("capture-pane", "-p", "-e", "-t", "t")), "vt100 has none"
        shell = terminal("display-message", "-p", "-t", "t", "#{pane_pid}").strip()
        found = subprocess.run(
            ["pgrep", "-P", shell, "-f", "orchestrator"], capture_output=True, text=True, check=True
        )
        subprocess.run(["kill", "-TERM", found.stdout.split()[0]], check=True)
        assert terminal.exit_code() == Exit.INTERRUPTED
        assert local.attempts("r1") == [1]
        seen = terminal.screen()
        assert "interrupted; what runs in a container goes on" in seen
        assert "q leave" not in seen
    finally:
        terminal.end()
