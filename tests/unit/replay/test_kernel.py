"""What the host's kernel said, read once for a recording: of this container, of its time, and no more."""

from __future__ import annotations

from datetime import timedelta

import pytest

from orchestrator.clock import SystemClock, timestamp
from orchestrator.record import AttemptRow
from orchestrator.replay.kernel import kernel_lines
from orchestrator.replay.known import Known
from orchestrator.types.seen import HostLine
from tests.builders import NOW
from tests.unit.near.test_hoststream import DENIED, Host, Script
from tests.unit.near.test_hostways import entry

OOM = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=ns,mems_allowed=0,oom_memcg=/lxc/{ct},"
    "task_memcg=/lxc/{ct}/ns,task=python3,pid={pid},uid=0"
)


def test_the_lines_of_this_container_are_read_and_then_it_ends():
    mine, theirs = OOM.format(ct=200, pid=7), OOM.format(ct=201, pid=8)
    script = Script(entry(1, mine), entry(2, theirs))
    lines, problem = kernel_lines(Host(script), 200, NOW - timedelta(hours=1), SystemClock())
    assert ([line.text for line in lines], problem) == ([mine], None)
    assert script.is_closed.wait(60)


def test_a_kernel_log_that_may_not_be_read_is_told_and_no_fault():
    host = Host(Script(b"", stderr=DENIED, code=1))
    lines, problem = kernel_lines(host, 200, NOW, SystemClock())
    assert lines == ()
    assert problem is not None


@pytest.mark.parametrize(("at_s", "attempts"), [(-600, []), (30, [1]), (98, [2]), (300, [2])])
def test_a_line_belongs_to_the_attempt_that_was_the_newest(at_s, attempts):
    rows = [AttemptRow(run_id=1, n=n, started_at=NOW + timedelta(seconds=s)) for n, s in ((1, 0), (2, 100))]
    at = NOW + timedelta(seconds=at_s)
    line = HostLine("NVRM: Xid (PCI:0000:dc:00): 79", at, 3)
    known = Known(run="r", attempts=rows, events=[], diagnoses=[], metrics=[], gpus=[], kernel=[line])
    found = {n: list(known.kernel_lines(n)) for n in (1, 2)}
    assert [n for n in (1, 2) if found[n]] == attempts
    for n in attempts:
        assert found[n] == [{"at": timestamp(at), "line": line.text, "gpu": 3}]
