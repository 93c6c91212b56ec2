"""Of a host's kernel lines, those of one run: another's kill or card is not ours."""

from __future__ import annotations

from orchestrator.classify.kernel import KernelEvent, read_all
from orchestrator.observe.hostlog import HostLog
from orchestrator.types.seen import HostLine
from tests.builders import ago, make_gpu
from tests.unit.classify.test_kernel import OOM, XID_79

ELSEWHERE = XID_79.replace("3b", "d8")


def event(text: str, seconds_ago: float = 1.0) -> KernelEvent:
    (found,) = read_all([HostLine(text, ago(seconds_ago))])
    return found


def log_of(ct: int | None = 200) -> HostLog:
    log = HostLog(ct)
    log.note_gpus([make_gpu(3, pci="0000:3b:00"), make_gpu(5, pci="0000:d8:00")])
    return log


def test_a_kill_in_this_container_is_ours():
    log = log_of()
    assert log.add(event(OOM), None) is not None
    assert [line.text for line in log.lines(ago(60), None)] == [OOM]


def test_a_kill_in_another_container_or_on_the_host_is_not_ours():
    log = log_of()
    assert log.add(event(OOM.replace("/lxc/200", "/lxc/201")), None) is None
    assert log.add(event(OOM.replace("/lxc/200", "/user.slice")), None) is None
    assert log.lines(ago(60), None) == ()


def test_a_run_of_the_host_itself_is_killed_in_no_container():
    log = log_of(None)
    assert log.add(event(OOM), None) is None
    assert log.add(event(OOM.replace("/lxc/200", "/user.slice")), None) is not None


def test_a_card_is_named_by_its_index_and_that_of_another_run_is_left_out():
    log = log_of()
    assert log.add(event(XID_79), frozenset({3})) is not None
    assert log.add(event(ELSEWHERE), frozenset({3})) is None
    assert [line.gpu for line in log.lines(ago(60), frozenset({3}))] == [3]


def test_a_card_that_is_in_no_reading_may_be_ours_and_has_no_index():
    log = HostLog(200)
    assert log.add(event(XID_79), frozenset({3})) is not None
    (line,) = log.lines(ago(60), frozenset({3}))
    assert line.gpu is None


def test_a_card_that_fell_off_the_bus_is_known_by_what_was_read_before():
    log = log_of()
    log.note_gpus([make_gpu(5, pci="0000:d8:00")])  # the card is gone from the readings
    log.add(event(XID_79), None)
    assert [line.gpu for line in log.lines(ago(60), None)] == [3]


def test_a_reading_that_comes_after_the_line_still_names_its_card():
    log = HostLog(200)
    log.add(event(XID_79), None)
    log.note_gpus([make_gpu(3, pci="0000:3b:00")])
    assert [line.gpu for line in log.lines(ago(60), None)] == [3]
    assert log.lines(ago(60), frozenset({0})) == ()


def test_what_was_before_the_attempt_began_is_not_of_it():
    log = log_of()
    log.add(event(XID_79, 3600), None)
    assert log.lines(ago(60), None) == ()
    assert len(log.lines(ago(7200), None)) == 1


def test_a_storm_keeps_its_first_and_last_lines_and_is_bounded():
    log = log_of()
    for number in range(10_000):
        log.add(event(XID_79.replace("pid=2741", "pid=1"), 10_000 - number), None)
    lines = log.lines(None, None)
    assert len(lines) == 6
    assert (lines[0].at, lines[-1].at) == (ago(10_000), ago(1))
    for pid in range(1000):
        log.add(event(OOM.replace("31337", str(pid))), None)
    assert len(log.lines(None, None)) <= 256
