"""What comes out of a container is hostile: no verb lets a control sequence of it through to a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.cli import LONG_S
from tests.integration.clilab import RUNS, cli

if TYPE_CHECKING:
    from tests.cli import Cli

pytestmark = pytest.mark.integration
__all__ = ["cli"]

# The clipboard, a title, a cursor report, a screen reset, 8-bit CSI, backspaces and a line that overtypes.
HOSTILE = "A\x1b]52;c;ZXZpbA==\x07B\x1b]0;evil\x1b\\C\x1b[6nD\x1bcE\x9b2JF\x08\x08G\x1b[8mH\x1b[2AI\u202eJ"
COLOURS = re.compile(rb"\x1b\[[0-9;:]*m")
# What rich itself writes around a live table and a spinner: cursor up, erase line, hide and show the cursor.
OF_RICH = re.compile(rb"\x1b\[(\d*A|2K|1A|\?25[lh])")

SCRIPT = f"""
import json, os, sys
hostile = {HOSTILE!r}
folder = os.environ["DFLASHCTL_ATTEMPT_DIR"]
sys.stdout.write(hostile + "\\n" + "\\x1b[31mred\\x1b[0m fine\\n" + "x" * 30_000 + "\\n" + hostile)
sys.stdout.flush()
at = "2026-11-29T19:31:31.000000Z"
beat = dict(schema=1, phase="train", step=3, total_steps=9, loss=1.0, recompiles=0, pid=os.getpid(), at=at)
open(folder + "/heartbeat.json", "w").write(json.dumps(beat))
last = dict(schema=1, exception="Evil" + hostile, message=hostile, traceback=hostile, rank=0,
            phase="train", step=3, kind=None, at=at)
open(folder + "/error.json", "w").write(json.dumps(last))
sys.exit("RuntimeError: " + hostile)
"""


def launch_hostile(cli: Cli, run: str) -> None:
    (cli.root / "opt/hostile.py").write_text(SCRIPT)
    cli.launch("--run", run, "--", "python3", "/opt/hostile.py", HOSTILE.replace("\n", ""))


def assert_harmless(data: bytes, *, colours: bool = False) -> None:
    left = OF_RICH.sub(b"", COLOURS.sub(b"", data)) if colours else data
    text = left.decode("utf-8")
    bad = [c for c in text if (ord(c) < 32 and c not in "\n\t\r") or 0x7F <= ord(c) < 0xA0 or c == "\u202e"]
    assert bad == [], text[-3000:]


def output(cli: Cli, *words: str) -> bytes:
    done = subprocess.run(
        cli.argv(*words), env=cli.env, cwd=cli.home, capture_output=True, stdin=subprocess.DEVNULL,
        timeout=LONG_S, check=False,
    )  # fmt: skip
    assert b"Traceback (most recent call last)" not in done.stderr, done.stderr[-2000:]
    return done.stdout + done.stderr


def on_terminal(cli: Cli, *words: str) -> bytes:
    """Return what the program writes when both its streams are a terminal."""
    near, far = pty.openpty()
    env = {**cli.env, "TERM": "xterm-256color"}
    del env["NO_COLOR"]
    with subprocess.Popen(cli.argv(*words), env=env, cwd=cli.home, stdin=far, stdout=far, stderr=far):
        os.close(far)
        told = b""
        while True:
            try:
                told += (data := os.read(near, 65536))
            except OSError:
                break
            if not data:
                break
    os.close(near)
    return told


VERBS = (
    "watch r1 --observe-only",
    "watch r1 --observe-only --json",
    "logs r1",
    "logs r1 --tail 0",
    "status r1",
    "status r1 --json",
    "ps",
    "explain r1",
    "explain r1 --json",
    "events r1",
    "events",
    "attach r1 --dry-run",
    "stop r1",
    "prune r1 --yes",
)


@pytest.mark.slow
def test_no_verb_lets_a_control_sequence_through(cli, lab):
    launch_hostile(cli, "r1")
    for verb in VERBS:
        told = output(cli, *verb.split())
        assert told, verb
        assert_harmless(told)
        assert max(map(len, told.splitlines())) < 20_000, f"{verb}: a line is capped"
    said = output(cli, "explain", "r1")
    assert b"ABCDEFGH" in said.replace(b"\n", b""), "the text itself is kept"


@pytest.mark.slow
def test_a_terminal_gets_colours_and_nothing_else(cli, lab):
    launch_hostile(cli, "r1")
    for verb in ("watch r1 --observe-only --lines", "logs r1", "status r1", "ps", "explain r1", "events r1"):
        told = on_terminal(cli, *verb.split())
        assert b"r1" in told or b"red" in told, verb
        assert_harmless(told, colours=True)
    assert b"\x1b[31mred\x1b[0m fine" in on_terminal(cli, "logs", "r1")


def test_files_of_a_run_that_lie_are_harmless_too(cli, lab):
    """Anyone in the container may write run.json, folders and checkpoints."""
    launch_hostile(cli, "r1")
    output(cli, "watch", "r1", "--observe-only")
    folder = lab.rootfs / RUNS / "r1"
    document = json.loads((folder / "attempts/1/run.json").read_text())
    document.update(run=HOSTILE, config=HOSTILE, argv=[HOSTILE], cwd=HOSTILE, kind=HOSTILE)
    for path in (folder / "run.json", folder / "attempts/1/run.json"):
        path.write_text(json.dumps(document))
    (folder / "stop.json").write_text(
        json.dumps({"schema": 1, "by": HOSTILE, "reason": HOSTILE, "attempt": 1})
    )
    (folder / "checkpoints").mkdir(exist_ok=True)
    for step in (1, 2, 3):
        (folder / "checkpoints" / f"step-{step}").mkdir()
        (folder / "checkpoints" / f"step-{step}" / "COMPLETE").touch()
    (folder / "checkpoints" / HOSTILE.replace("/", "")).mkdir()
    (lab.rootfs / RUNS / HOSTILE.replace("/", "")).mkdir()
    for verb in (
        "status r1",
        "ps",
        "explain r1",
        "relaunch r1 --yes",
        "prune r1 --keep 1 --yes",
        "rm r1 --yes",
    ):
        assert_harmless(output(cli, *verb.split()))


def test_a_foreign_pane_is_harmless(cli, lab):
    (cli.root / "opt/pane.py").write_text(f"print({HOSTILE!r}, flush=True); import time; time.sleep(600)")
    lab.exec(["tmux", "new-session", "-d", "-s", "foreign", "LC_ALL=C.UTF-8 python3 /opt/pane.py"])
    try:
        for form in ((), ("--json",)):
            assert_harmless(output(cli, "watch", *cli.where, "--session", "foreign", *form))
        assert_harmless(on_terminal(cli, "watch", *cli.where, "--session", "foreign"), colours=True)
        assert_harmless(output(cli, "watch", *cli.where, "--session", HOSTILE))
    finally:
        lab.exec(["tmux", "kill-session", "-t", "=foreign"])


def test_raw_is_the_bytes_as_they_are(cli, lab):
    launch_hostile(cli, "r1")
    assert cli.watch("r1", "--observe-only").end() != 0
    log = (lab.rootfs / RUNS / "r1/attempts/1/log").read_bytes()
    assert output(cli, "logs", "r1", "--raw", "--tail", "0") == log
    assert b"\x1b]52" in log


def test_colour_is_left_out_when_it_is_asked_for_or_no_terminal_is_there(cli, lab):
    cli.launch("--run", "r1", "--", "printf", "\\033[31mred\\033[0m\\n")
    for flags in (("--no-color",), ()):
        assert b"\x1b[3" not in output(cli, *flags, "logs", "r1")
    assert b"\x1b[3" not in on_terminal(cli, "--no-color", "logs", "r1")
    assert b"\x1b[3" not in on_terminal(cli, "--no-color", "status", "r1")
