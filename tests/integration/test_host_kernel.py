"""The host's kernel log in a watch, over real ssh: OOM kills and Xids explain the deaths that they caused."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli import Cli, Watching, is_kind
from tests.integration.clilab import cli, launch_standin
from tests.lab.gpus import Gpu

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.lab import Lab

pytestmark = pytest.mark.integration

__all__ = ["cli"]

XID = "NVRM: Xid (PCI:{pci}): {code}, pid=2741, name=python3, GPU has fallen off the bus."
KILLED = "Memory cgroup out of memory: Killed process {pid} (python3) total-vm:812345kB, anon-rss:1kB"


def oom(lab: Lab, pid: int, ct: int = 200) -> str:
    memcg = f"/{lab.cgroup}/lxc/{ct}"
    return (
        f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=ns,mems_allowed=0,oom_memcg={memcg},"
        f"task_memcg={memcg}/ns,task=python3,pid={pid},uid=100000"
    )


@pytest.fixture
def host(lab: Lab) -> Iterator[Lab]:
    lab.show_kernel_log()
    yield lab
    lab.show_kernel_log()


def begin(cli: Cli, run: str) -> Watching:
    (cli.home / "playbook.yaml").write_text("extends: default\nbackoff: [0s]\njitter: 0\n")
    launch_standin(cli, run, "--steps", "20000", "--step-s", "0.1")
    watch = cli.watch(run, "--playbook", str(cli.home / "playbook.yaml"))
    watch.wait_for(lambda e: e["kind"] == "log" and e["text"].startswith("step 5/"))
    return watch


def trainer(lab: Lab, run: str) -> int:
    """The host's pid of the run's trainer."""
    mark = f"DFLASHCTL_RUN={run}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = mark in (path / "environ").read_bytes().split(b"\0")
            words = (path / "cmdline").read_bytes()
        except OSError:
            continue
        if is_ours and b"standin.py" in words and b"supervise" not in words and b"tmux" not in words:
            return int(path.name)
    raise AssertionError(f"no trainer of {run} is alive")


def kill(lab: Lab, run: str, *lines: str, watch: Watching | None = None) -> None:
    """Let the kernel say it, and do it; with a watch once that has read the first of it."""
    pid = trainer(lab, run)
    for line in lines:
        lab.kernel_says(line.format(pid=pid))
    if watch is not None:
        watch.wait_for(is_kind("host"))
    os.kill(pid, signal.SIGKILL)


def death(watch: Watching) -> dict[str, Any]:
    found: dict[str, Any] = watch.wait_for(is_kind("diagnosis", state="dead"))
    return found


def test_a_kill_by_the_oom_killer_is_named_with_the_kernels_line_and_acted_on(cli, host):
    watch = begin(cli, "oom")
    kill(host, "oom", oom(host, trainer(host, "oom")), KILLED, watch=watch)
    dead = death(watch)
    assert dead["detail"]["failure"] == "oom_host", watch.story()
    assert "the container ran out of memory (python3, host pid" in dead["text"]
    assert any(e["source"] == "host" and "oom-kill" in e["text"] for e in dead["detail"]["evidence"])
    assert len([e for e in watch.events() if e["kind"] == "diagnosis"]) == 1, watch.story()
    assert len([e for e in watch.events() if e["kind"] == "host"]) == 1, watch.story()
    assert watch.wait_for(is_kind("decision"))["detail"]["rule"] == "oom_host"
    watch.wait_for(lambda e: e["kind"] == "attempt" and e["attempt"] == 2)


def test_the_same_kill_in_another_container_is_somebody_elses(cli, host):
    watch = begin(cli, "theirs")
    kill(host, "theirs", oom(host, 4242, ct=201))
    assert death(watch)["detail"]["failure"] == "signal_exit", watch.story()
    assert not [e for e in watch.events() if e["kind"] == "host"]


def test_a_card_off_the_bus_beats_what_the_program_says_and_calls_a_person(cli, host):
    watch = begin(cli, "card")
    watch.wait_for(lambda e: e["kind"] == "log" and e["text"].startswith("step 60/"))  # the GPUs were read
    host.kernel_says(XID.format(pci=Gpu(3).pci, code=79))
    told = watch.wait_for(is_kind("host"))
    assert told["text"].startswith("kernel: GPU 3 (0000:13:00): Xid 79"), told
    assert told["detail"]["action"] == "reboot the host"
    kill(host, "card", XID.format(pci=Gpu(3).pci, code=45))
    dead = death(watch)
    assert dead["detail"]["failure"] == "gpu_lost", watch.story()
    assert dead["detail"]["evidence"][0]["signature"] == "xid_79"
    assert watch.end() == 13, watch.story()
    explained = cli.json("explain", "card")
    assert explained["failure"] == "gpu_lost"


def test_what_the_kernel_says_during_a_cut_is_neither_lost_nor_told_twice(cli, host):
    watch = begin(cli, "cut")
    host.kernel_says(XID.format(pci=Gpu(3).pci, code=63))
    watch.wait_for(lambda e: e["kind"] == "host" and e["detail"]["xid"] == 63)
    host.kill_ssh_connections()
    host.kernel_says(XID.format(pci=Gpu(3).pci, code=94))
    watch.wait_for(lambda e: e["kind"] == "host" and e["detail"]["xid"] == 94)
    host.kernel_says(XID.format(pci=Gpu(3).pci, code=48))
    watch.wait_for(lambda e: e["kind"] == "host" and e["detail"]["xid"] == 48)
    assert [e["detail"]["xid"] for e in watch.events() if e["kind"] == "host"] == [63, 94, 48]


def test_a_watch_that_begins_after_the_death_still_learns_what_the_kernel_said(cli, host):
    begin(cli, "late").kill()
    kill(host, "late", oom(host, trainer(host, "late")))
    time.sleep(6)  # what the kernel said in the last 5 s is news to a watch that begins
    watch = cli.watch("late", "--observe-only")
    assert death(watch)["detail"]["failure"] == "oom_host", watch.story()
    assert not [e for e in watch.events() if e["kind"] == "host"], "it is no news"


@pytest.mark.slow
def test_a_kernel_log_that_nobody_may_read_is_said_once_and_all_else_goes_on(cli, host):
    host.hide_kernel_log("kernel-denied")
    watch = begin(cli, "denied")
    told = watch.wait_for(is_kind("host"))
    assert told["level"] == "info"
    assert "cannot be read (journalctl: not allowed; dmesg: not allowed)" in told["text"]
    kill(host, "denied", KILLED)
    assert death(watch)["detail"]["failure"] == "signal_exit", watch.story()
    watch.wait_for(lambda e: e["kind"] == "attempt" and e["attempt"] == 2)
    assert len([e for e in watch.events() if e["kind"] == "host"]) == 1


@pytest.mark.slow
def test_a_host_without_a_journal_is_read_by_dmesg(cli, host):
    host.hide_kernel_log("no-journal")
    watch = begin(cli, "buffer")
    kill(host, "buffer", oom(host, trainer(host, "buffer")))
    assert death(watch)["detail"]["failure"] == "oom_host", watch.story()


def test_a_container_that_a_backup_froze_is_told_with_its_lock(cli, clean_lab):
    watch = begin(cli, "backup")
    clean_lab.lock(reason="backup")
    clean_lab.freeze()
    try:
        frozen = watch.wait_for(is_kind("diagnosis", state="container_frozen"))
    finally:
        clean_lab.unfreeze()
        clean_lab.unlock()
    assert frozen["detail"]["failure"] == "container_frozen"
    assert "(a backup)" in frozen["text"]
    assert "lock: backup" in frozen["detail"]["evidence"][0]["text"]


HOG = """\
import time
held = []
for _ in range(400):
    held.append(bytearray(1 << 20))
    time.sleep(0.01)
time.sleep(60)
"""


def test_the_real_oom_killer_of_this_kernel_is_read_from_its_own_dmesg(cli, clean_lab):
    clean_lab.hide_kernel_log("real-kernel")
    clean_lab.limit_memory(160 << 20)
    cli.launch("--run", "hog", "--", "python3", "-c", HOG)
    watch = cli.watch("hog", "--observe-only")
    dead = death(watch)
    assert dead["detail"]["failure"] == "oom_host", watch.story()
    proof = next(e for e in dead["detail"]["evidence"] if e["source"] == "host")
    assert f"/{clean_lab.cgroup}/lxc/200" in proof["text"]
