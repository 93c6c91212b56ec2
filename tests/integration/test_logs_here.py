"""`logs` of a real run on this machine: by attempt, by time, by rank, by pattern, in colour on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.integration.local import Local, local_runs, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.integration, pytest.mark.slow]  # nine programs, one after the other

SAYS = """\
import datetime, os, sys, time
for text in ("first", "second", "\\x1b[31mRuntimeError\\x1b[0m: third"):
    print(f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S.%f} {text}", flush=True)
    time.sleep(0.7)
print(f"[rank1]: attempt {os.environ['DFLASHCTL_ATTEMPT']}")
sys.exit(1)
"""


@pytest.fixture
def local(tmp_path) -> Iterator[Local]:
    with local_runs(tmp_path) as here:
        yield here


def on_terminal(local: Local, *words: str) -> bytes:
    ours, theirs = pty.openpty()
    env = {**local.env, "TERM": "xterm-256color"}
    env.pop("NO_COLOR")
    with subprocess.Popen(local.argv(*words), env=env, stdout=theirs, stdin=subprocess.DEVNULL) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 65536):
                shown += piece
        except OSError:  # the other end is closed
            pass
        process.wait()
    os.close(ours)
    return shown


def test_logs_chooses_by_attempt_time_rank_and_pattern(local):
    attempt = local.state / "runs" / "r" / "attempts"
    local.begin("r", "python3", "-c", SAYS)
    wait_until(lambda: (attempt / "1" / "exit.json").exists())
    local.run("relaunch", "r", "--yes")
    wait_until(lambda: (attempt / "2" / "exit.json").exists())

    def lines(*words: str) -> list[str]:
        text: str = local.run("logs", "r", *words).stdout
        return text.splitlines()

    log = (attempt / "2" / "log").read_text().splitlines()
    assert lines("--previous", "--rank", "1") == ["[rank1]: attempt 1"]
    assert on_terminal(local, "logs", "r", "-g", "Runtime(Error|Warning)") == log[2].encode() + b"\r\n"
    second = log[1][:26]  # in this zone, which is the container's too
    assert lines("--since", second) == [log[1], *lines("--tail", "64KiB")[2:]]
    quiet = local.run("logs", "r", "--since", "1ms")
    assert (quiet.stdout, "nothing was written since" in quiet.stderr) == ("", True)
