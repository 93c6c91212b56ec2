"""A death joined to the host's kernel log: by card, by container, by time; and where it must stay apart."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from orchestrator.classify import Limits, LogScanner, diagnose
from orchestrator.classify.exits import Cause
from orchestrator.classify.hostside import ask_host
from orchestrator.types.failure import Diagnosis, Evidence, FailureClass, Role, RunState
from orchestrator.types.seen import Absent, HostLine, Present
from tests.builders import GONE, NOW, ago, make_exit, make_gpu, make_heartbeat, make_snapshot
from tests.unit.classify.test_kernel import KILLED, OOM

if TYPE_CHECKING:
    from orchestrator.types.snapshot import Snapshot

_F = FailureClass
NCCL = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 1, in step
[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2027, remote process exited
"""
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 1, in step\nValueError: bad shape\n'


def xid(code: int, seconds_ago: float = 2.0, gpu: int | None = 3) -> HostLine:
    text = f"NVRM: Xid (PCI:0000:3b:00): {code}, pid=2741, name=python3, words of the driver"
    return HostLine(text, ago(seconds_ago), gpu)


def died(log: str, *lines: HostLine, code: int | None = 1, signal: int | None = None, **changes) -> Diagnosis:
    return diagnose(dead(log, *lines, code=code, signal=signal, **changes), Limits())


def dead(log: str, *lines: HostLine, code: int | None = 1, signal: int | None = None, **changes) -> Snapshot:
    scanner = LogScanner()
    scanner.feed(log.encode(), 0)
    fields = {
        "liveness": Present(GONE),
        "exit": Present(make_exit(code, signal)),
        "log": scanner.reading(),
        "host_lines": lines,
        **changes,
    }
    return make_snapshot(**fields)


@pytest.mark.parametrize(
    ("code", "failure", "advice"),
    [
        (79, _F.GPU_LOST, "reboot the host"),
        (119, _F.GPU_LOST, "reset the GPU"),
        (48, _F.GPU_ECC, "reset the GPU"),
        (95, _F.GPU_ECC, "reset the GPU"),
        (74, _F.GPU_NVLINK, "reset the GPUs of the link"),
        (149, _F.GPU_NVLINK, "reset the GPUs of the link"),
    ],
)
def test_a_failed_card_beats_every_nccl_line(code, failure, advice):
    found = died(NCCL, xid(code))
    assert (found.state, found.failure) == (RunState.DEAD, failure)
    assert f"GPU 3 (0000:3b:00): Xid {code}" in found.summary
    assert advice in found.summary
    assert found.evidence[0].source == "host"
    assert any("DistBackendError" in e.text for e in found.evidence), "how the program saw it is kept"
    assert found.confidence > 0.9


def test_the_first_failed_card_is_the_cause_and_what_follows_it_is_not():
    found = died(NCCL, xid(45, 9), xid(79, 8, gpu=1), xid(119, 5, gpu=2))
    assert "GPU 1" in found.summary
    assert found.fingerprint == "gpu_lost: xid 79 on gpu 1"
    assert [e.signature for e in found.cascades if e.source == "host"] == ["xid_45"]


def test_a_gpu_off_the_bus_without_an_xid_is_a_lost_gpu():
    line = HostLine("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", ago(3), 3)
    assert died(NCCL, line).failure is _F.GPU_LOST


def test_a_card_of_which_nobody_knows_the_index_counts_with_less_confidence():
    found = died(NCCL, xid(79, gpu=None))
    assert found.failure is _F.GPU_LOST
    assert found.confidence < 0.8
    assert "the GPU at 0000:3b:00" in found.summary


@pytest.mark.parametrize(
    "log", [TRACEBACK, TRACEBACK.replace("ValueError: bad shape", "ModuleNotFoundError: No module named 'x'")]
)
def test_a_failed_card_explains_no_exception_that_has_nothing_to_do_with_it(log):
    assert died(log, xid(79)).failure is died(log).failure


def test_a_card_that_failed_hours_before_explains_nothing():
    assert died(NCCL, xid(79, 4 * 3600)).failure is died(NCCL).failure


def test_a_failure_that_was_survived_for_many_steps_explains_nothing():
    heartbeat = Present(make_heartbeat(at=ago(1)))
    lines = (xid(94, 600),)
    assert died(NCCL, *lines, heartbeat=heartbeat, heartbeat_seen_at=ago(1)).failure is _F.NCCL_ERROR
    stuck = died(NCCL, *lines, heartbeat=heartbeat, heartbeat_seen_at=ago(595))
    assert stuck.failure is _F.GPU_ECC, "no step was made after it"


def test_a_watch_that_came_late_takes_its_first_look_for_no_step():
    """It saw an hour later, for the first time, a step that was made before the card failed."""
    heartbeat = Present(make_heartbeat(at=ago(3605)))
    exit_record = Present(replace(make_exit(), at=ago(3590)))
    found = died(NCCL, xid(79, 3600), heartbeat=heartbeat, heartbeat_seen_at=ago(1), exit=exit_record)
    assert found.failure is _F.GPU_LOST


def test_the_clocks_difference_is_taken_off_before_times_are_compared():
    """The container is an hour ahead: its line and its exit are an hour ahead of the near side's steps."""
    ahead = timedelta(hours=1)
    line = replace(xid(79), at=ago(5) + ahead)
    exit_record = Present(replace(make_exit(), at=NOW + ahead))
    heartbeat = Present(make_heartbeat(at=ago(6) + ahead))
    found = died(
        NCCL, line, exit=exit_record, heartbeat=heartbeat, heartbeat_seen_at=ago(6), clock_skew_s=3600.0
    )
    assert found.failure is _F.GPU_LOST


@pytest.mark.parametrize("code", [43, 45, 63, 92, 154])
def test_consequences_and_notes_are_no_cause(code):
    assert died(NCCL, xid(code)).failure is _F.NCCL_ERROR
    assert died("", xid(code), code=None, signal=9).failure is _F.SIGNAL_EXIT


@pytest.mark.parametrize("code", [43, 45, 13, 79])
def test_after_a_stop_by_its_user_no_xid_is_an_alarm(code):
    found = died("", xid(code), code=75, stop_by="user")
    assert found.state is RunState.STOPPED
    assert found.evidence == ()


def asked(failure: FailureClass, text: str, *lines: HostLine) -> Cause:
    """What the host makes of a cause that the log gave."""
    cause = Cause(failure=failure, root=Evidence(source="log", text=text))
    return ask_host(cause, dead("", *lines))


@pytest.mark.parametrize("code", [13, 31])
def test_a_page_fault_of_the_gpu_is_the_programs_fault(code):
    illegal = "RuntimeError: CUDA error: an illegal memory access was encountered"
    found = asked(_F.CUDA_ILLEGAL_ACCESS, illegal, xid(code))
    assert (found.failure, found.root.text) == (_F.CUDA_ILLEGAL_ACCESS, illegal)
    assert [(e.signature, e.role) for e in found.evidence] == [(f"xid_{code}", Role.CONFIRMATION)]
    assert died(NCCL, xid(code)).failure is _F.CUDA_ILLEGAL_ACCESS, "the peers only saw a rank go"


def test_a_page_fault_on_a_card_that_may_be_anothers_says_nothing():
    assert died(NCCL, xid(31, gpu=None)).failure is _F.NCCL_ERROR


def test_a_kill_by_the_kernel_names_the_process_and_the_container():
    found = died("", HostLine(OOM, ago(1)), HostLine(KILLED, ago(1)), code=None, signal=9)
    assert found.failure is _F.OOM_HOST
    assert "the container ran out of memory (python3, host pid 31337)" in found.summary
    assert any(e.source == "host" and "oom-kill" in e.text for e in found.evidence)


def test_a_host_out_of_memory_is_said_to_be_the_host():
    line = HostLine(OOM.replace("CONSTRAINT_MEMCG", "CONSTRAINT_NONE"), ago(1))
    assert "the host ran out of memory" in died("", line, code=None, signal=9).summary


def test_a_killed_peer_explains_an_nccl_error():
    assert died(NCCL, HostLine(OOM, ago(4))).failure is _F.OOM_HOST


def test_the_containers_own_count_names_a_kill_without_the_hosts_leave():
    counted = Present(replace(make_exit(None, 9), oom_kills=1))
    found = died("", exit=counted)
    assert found.failure is _F.OOM_HOST
    assert any("killed 1 process of the container" in e.text for e in found.evidence)


@pytest.mark.parametrize(
    ("signal", "code", "kills"), [(9, None, 0), (9, None, None), (11, None, 1), (None, 1, 2)]
)
def test_a_count_of_none_or_another_death_is_no_kill_by_the_kernel(signal, code, kills):
    record = make_exit(code, signal)
    found = died(TRACEBACK if code else "", exit=Present(replace(record, oom_kills=kills)))
    assert found.failure is died(TRACEBACK if code else "", exit=Present(record)).failure


def test_a_run_that_vanished_beside_a_kill_ran_out_of_memory():
    found = died("", HostLine(OOM, ago(1)), exit=Absent())
    assert found.failure is _F.OOM_HOST


@pytest.mark.parametrize("seconds_ago", [600.0, -300.0])
def test_a_kill_at_another_time_is_not_this_death(seconds_ago):
    line = HostLine(OOM, ago(seconds_ago))
    assert died("", line, code=None, signal=9).failure is _F.SIGNAL_EXIT
    assert died(NCCL, line).failure is _F.NCCL_ERROR


@pytest.mark.parametrize(("code", "signal"), [(1, None), (None, 11), (75, None), (None, 15)])
def test_a_kill_beside_a_death_of_another_kind_is_not_its_cause(code, signal):
    line = HostLine(OOM, ago(1))
    with_it, without = (died(TRACEBACK, *lines, code=code, signal=signal) for lines in ((line,), ()))
    assert with_it.failure is without.failure


def test_what_the_driver_says_of_a_card_confirms_and_never_decides():
    sick = make_gpu(3, recovery="reset the GPU", ecc_uncorrected=2, remap_pending=True)
    reading = Present((make_gpu(0), sick))
    found = died(NCCL, gpus=reading)
    assert found.failure is _F.NCCL_ERROR
    said = [e.text for e in found.evidence if e.source == "gpu"]
    driver = "the driver asks to reset the GPU, 2 uncorrected ECC errors"
    assert said == [f"GPU 3: {driver}, bad memory is replaced at the next reset"]
    assert not [e for e in died(TRACEBACK, gpus=reading).evidence if e.source == "gpu"]


def test_a_hang_on_a_lost_card_is_named_after_the_card():
    still = ago(10_000)
    snapshot = make_snapshot(
        heartbeat=Present(make_heartbeat(at=NOW)), heartbeat_seen_at=still, host_lines=(xid(79, 5_000),)
    )
    found = diagnose(snapshot, Limits())
    assert (found.state, found.failure) == (RunState.HUNG, _F.GPU_LOST)
    assert "Xid 79" in found.summary
    plain = diagnose(replace(snapshot, host_lines=(xid(45, 5_000), xid(63, 5_000))), Limits())
    assert (plain.state, plain.failure) == (RunState.HUNG, _F.HANG)


def test_a_living_run_with_a_failed_card_is_warned_of_and_stays_healthy():
    found = diagnose(make_snapshot(host_lines=(xid(94, 30),)), Limits())
    assert found.state is RunState.HEALTHY
    assert [e.signature for e in found.warnings] == ["xid_94"]
    quiet = diagnose(make_snapshot(host_lines=(xid(43), xid(63), xid(79, gpu=None))), Limits())
    assert quiet.warnings == ()


def test_a_disk_that_fails_is_shown_beside_the_io_error():
    line = HostLine("EXT4-fs error (device dm-3): ext4_find_entry:1455: reading directory", ago(3))
    found = asked(_F.IO_ERROR, "OSError: [Errno 5] Input/output error: '/data/x'", line)
    assert [e.text[:7] for e in found.evidence] == ["EXT4-fs"]
    assert asked(_F.PYTHON_EXCEPTION, "ValueError: bad shape", line).evidence == ()


def test_the_line_of_another_kernel_subsystem_changes_nothing():
    line = HostLine("vmbr0: port 2(veth200i0) entered disabled state", ago(1))
    assert died("", line, code=None, signal=9) == died("", code=None, signal=9)


def test_a_host_that_was_rebooted_is_told_from_a_container_that_was():
    fields = {"exit": Present(make_exit(None, 9)), "liveness": Present(GONE), "container_restarted": True}
    rebooted = diagnose(make_snapshot(**fields, host_rebooted=True, host_up_s=312.0), Limits())
    assert rebooted.failure is _F.HOST_REBOOTED
    assert "up for 5m12s" in rebooted.evidence[0].text
    assert diagnose(make_snapshot(**fields), Limits()).failure is _F.CONTAINER_RESTARTED
    own_end = diagnose(
        make_snapshot(**{**fields, "exit": Present(make_exit(1))}, host_rebooted=True), Limits()
    )
    assert own_end.failure is not _F.HOST_REBOOTED, "it had ended by itself before"


def test_a_frozen_container_is_told_with_the_hosts_own_words():
    found = diagnose(make_snapshot(container="frozen", container_lock="backup"), Limits())
    assert (found.state, found.failure) == (RunState.CONTAINER_FROZEN, _F.CONTAINER_FROZEN)
    assert found.evidence[0].text == "lxc-info: FROZEN; pct status: lock: backup"
    assert "a backup" in found.summary
