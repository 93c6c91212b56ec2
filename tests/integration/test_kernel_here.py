"""This machine's kernel log in a watch of local runs: real processes, stand-ins for the log's tools."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli import is_kind
from tests.integration.local import Local, local_runs, wait_until
from tests.lab.faults import Faults
from tests.lab.furnish import kernel_log_scripts, write_scripts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli import Watching

pytestmark = [pytest.mark.integration, pytest.mark.slow]

OOM = (
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
    "task_memcg=/user.slice,task=python3,pid={pid},uid=0"
)


class Kernel(Faults):
    """The part of the lab's faults that is about the kernel's log, over a directory of its own."""

    def __init__(self, state: Path) -> None:
        self.state = state


@pytest.fixture
def kernel(tmp_path) -> Kernel:
    (tmp_path / "bin").mkdir()
    write_scripts(tmp_path / "bin", kernel_log_scripts(tmp_path))
    return Kernel(tmp_path)


@pytest.fixture
def local(tmp_path, kernel) -> Iterator[Local]:
    with local_runs(tmp_path) as runs:
        runs.env["PATH"] = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        yield runs


def begin(local: Local, run: str) -> Watching:
    local.begin_standin(run, "--steps", "20000", "--step-s", "0.1")
    watch = local.watch(run)
    watch.wait_for(lambda e: e["kind"] == "log" and e["text"].startswith("step 5/"))
    return watch


def followers(state: Path) -> list[str]:
    """The stand-ins that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(state) in words and "kernellog" in words:
            found.append(words)
    return found


@pytest.mark.parametrize("tool", ["journalctl", "dmesg"])
def test_a_kill_is_joined_to_the_kernels_line_and_told_once(local, kernel, tool):
    if tool == "dmesg":
        kernel.hide_kernel_log("no-journal")
    watch = begin(local, "killed")
    (pid,) = local.trainers("killed")
    kernel.kernel_says("usb 1-1: new high-speed USB device number 2")
    kernel.kernel_says(OOM.format(pid=pid))
    os.kill(pid, signal.SIGKILL)
    dead = watch.wait_for(is_kind("diagnosis", state="dead"))
    assert dead["detail"]["failure"] == "oom_host", watch.story()
    assert f"the host ran out of memory (python3, host pid {pid})" in dead["text"]
    watch.wait_for(lambda e: e["kind"] == "attempt" and e["attempt"] == 2)
    assert len([e for e in watch.events() if e["kind"] == "diagnosis"]) == 1, watch.story()
    assert len([e for e in watch.events() if e["kind"] == "host"]) == 1, watch.story()


def test_a_kill_that_the_kernel_tells_only_of_a_container_is_not_ours(local, kernel):
    watch = begin(local, "theirs")
    (pid,) = local.trainers("theirs")
    kernel.kernel_says(OOM.format(pid=pid).replace("/user.slice", "/lxc/200"))
    os.kill(pid, signal.SIGKILL)
    dead = watch.wait_for(is_kind("diagnosis", state="dead"))
    assert dead["detail"]["failure"] == "signal_exit", watch.story()
    assert not [e for e in watch.events() if e["kind"] == "host"]


def test_a_watch_that_ends_leaves_no_follower_of_the_log(local, kernel):
    watch = begin(local, "gone")
    wait_until(lambda: len(followers(local.home)) == 1)
    watch.process.send_signal(signal.SIGINT)
    watch.end()
    wait_until(lambda: followers(local.home) == [])


def test_status_asks_the_kernel_once_where_no_watch_was(local, kernel):
    local.begin_standin("alone", "--steps", "20000", "--step-s", "0.1")
    wait_until(lambda: local.trainers("alone"))
    (pid,) = local.trainers("alone")
    kernel.kernel_says(OOM.format(pid=pid))
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: (local.state / "runs" / "alone" / "attempts" / "1" / "exit.json").exists())
    told = local.json("status", "alone", code=10)
    assert told["failure"] == "oom_host", told
    assert "the host ran out of memory" in told["summary"]


def test_a_log_that_nobody_may_read_is_said_once(local, kernel):
    kernel.hide_kernel_log("kernel-denied")
    watch = begin(local, "denied")
    told = watch.wait_for(is_kind("host"))
    assert "cannot be read (journalctl: not allowed; dmesg: not allowed)" in told["text"]
    time.sleep(1)
    assert len([e for e in watch.events() if e["kind"] == "host"]) == 1
