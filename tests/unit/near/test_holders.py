"""Who holds a GPU, from what a host prints."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from orchestrator.observe.holders import Holder, gpu_holders, parse, told

IN_200 = """\
pid 4242
State D (disk sleep)
NSpid 4242\t37
cgroup 12:devices:/lxc/200/ns 0::/lxc/200/ns
owner root
command /opt/venv/bin/python -m trainer --config fast
run b32

"""
ELSEWHERE = """\
pid 77
State S (sleeping)
NSpid 77\t9
cgroup 0::/lxc.payload.105/system.slice
owner 100000
command jupyter-lab --token=hf_abcdefghijklmnopqrstuvwxyz0123456789
run

"""
ON_HOST = (
    "pid 5\nState S (sleeping)\nNSpid 5\ncgroup 0::/user.slice\nowner ann\ncommand ollama serve\nrun \n\n"
)


def test_a_process_of_the_runs_container_is_named_by_both_ids_and_its_run():
    (found,) = parse(IN_200)
    assert (found.pid, found.inner_pid, found.ct, found.run) == (4242, 37, 200, "b32")
    assert found.text == (
        "/opt/venv/bin/python -m trainer --config fast "
        "(host pid 4242, pid 37 in container 200, user root, of run b32)"
    )
    assert found.is_stuck
    assert "only a reboot" in found.remedy(200)


def test_each_gets_the_command_that_would_end_it_and_no_secret_is_told():
    one, two = parse(ELSEWHERE + ON_HOST)
    assert (one.ct, one.inner_pid, one.run) == (105, 9, None)
    assert one.remedy(200) == "`pct exec 105 -- kill 9` on the host would end it"
    assert (two.ct, two.inner_pid, two.owner) == (None, None, "ann")
    assert two.remedy(200) == "`kill 5` on the host would end it"
    assert "hf_abc" not in told((one, two), 200)


def test_another_run_of_the_same_container_is_stopped_as_a_run_is():
    other = Holder(pid=1, command="python", owner="root", ct=200, inner_pid=9, run="b 32")
    assert other.remedy(200) == "`dflashctl stop 'b 32'` would end it"
    assert other.remedy(201) == "`pct exec 200 -- kill 9` on the host would end it"


@pytest.mark.parametrize("text", ["", "pid \n", "pid x\ncommand y\n", "sh: not found\n", "pid 12"])
def test_junk_names_nobody_or_no_more_than_there_is(text: str):
    assert [each.pid for each in parse(text)] == ([12] if text == "pid 12" else [])
    assert told(parse(""), 200) == ""


@dataclass
class Here:
    """This machine as the host."""

    def run(self, argv: tuple[str, ...], *, timeout_s: float) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(argv, capture_output=True, timeout=timeout_s, check=True)


def test_a_real_process_is_named_with_its_run():
    code = "import time; print(1, flush=True); time.sleep(60)"
    env = {**os.environ, "DFLASHCTL_RUN": "mine"}
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        gone = 2**22 + 1
        (found,) = gpu_holders(Here(), (process.pid, gone))
        process.kill()
    assert (found.pid, found.run, found.is_stuck) == (process.pid, "mine", False)
    assert found.command.startswith(sys.executable)
    assert found.owner
