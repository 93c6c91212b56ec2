from datetime import timedelta

import pytest

from orchestrator.observe import RunTracker
from orchestrator.types.seen import Absent, Blind, Present
from orchestrator.types.snapshot import Snapshot
from orchestrator.wire import pack_bytes
from tests.builders import NOW, attempt_message, heartbeat_json, run_message

HELLO = {"type": "hello", "now": NOW.timestamp() + 3.0, "boot_id": "b", "pid1_start_ticks": 5}


def tracker_of_a_living_run() -> RunTracker:
    tracker = RunTracker("dflash")
    tracker.apply(HELLO, NOW)
    tracker.apply(run_message(), NOW)
    return tracker


def seen(tracker: RunTracker) -> Snapshot:
    snapshot = tracker.snapshot(NOW)
    assert snapshot is not None
    return snapshot


def log_message(data: bytes, offset: int, attempt: int = 1) -> dict[str, object]:
    return {"type": "log", "run": "dflash", "attempt": attempt, "offset": offset, "data": pack_bytes(data)}


def test_nothing_is_known_before_the_first_look():
    assert RunTracker("dflash").snapshot(NOW) is None


def test_a_lost_stream_makes_blind_and_never_absent():
    tracker = tracker_of_a_living_run()
    tracker.lost("connection reset")
    snapshot = tracker.snapshot(NOW)
    assert snapshot is not None
    assert snapshot.liveness == Blind("connection reset")
    assert snapshot.gpus == Blind("connection reset")


def test_a_malformed_file_makes_blind_and_never_absent():
    tracker = tracker_of_a_living_run()
    tracker.apply(attempt_message("exit", {"code": 1}), NOW)
    snapshot = tracker.snapshot(NOW)
    assert snapshot is not None
    assert isinstance(snapshot.exit, Blind)


def test_log_bytes_that_come_twice_after_a_reconnect_are_told_once():
    tracker = tracker_of_a_living_run()
    first = tracker.apply(log_message(b"abc\n", 0), NOW)
    again = tracker.apply(log_message(b"abc\ndef\n", 0), NOW)
    assert (first.log, again.log) == (b"abc\n", b"def\n")
    assert tracker.view is not None
    assert tracker.view.log_offset == 8


def test_only_a_new_step_or_phase_counts_as_progress():
    tracker = tracker_of_a_living_run()
    tracker.apply(attempt_message("heartbeat", heartbeat_json(step=3)), NOW)
    later = NOW + timedelta(seconds=10)
    tracker.apply(attempt_message("heartbeat", heartbeat_json(step=3)), later)
    assert tracker.view is not None
    assert tracker.view.heartbeat_seen_at == NOW
    tracker.apply(attempt_message("heartbeat", heartbeat_json(step=4)), later)
    assert tracker.view.heartbeat_seen_at == later


def test_a_new_attempt_begins_with_nothing_of_the_old_one():
    tracker = tracker_of_a_living_run()
    tracker.apply(attempt_message("last_words", {"exception": "E", "message": "m"}), NOW)
    sighting = tracker.apply(run_message(attempt=2), NOW)
    snapshot = tracker.snapshot(NOW)
    assert sighting.attempt == 2
    assert snapshot is not None
    assert snapshot.last_words == Absent()


def test_the_rest_of_an_old_attempts_log_is_told_after_a_cut():
    tracker = tracker_of_a_living_run()
    tracker.apply(log_message(b"one\n", 0), NOW)
    tracker.apply(run_message(attempt=2), NOW)
    sighting = tracker.apply(log_message(b"last words\n", 4, attempt=1), NOW)
    assert (sighting.of, sighting.log) == (1, b"last words\n")


def test_another_pid_1_means_that_the_container_was_restarted():
    tracker = tracker_of_a_living_run()
    assert not seen(tracker).container_restarted
    tracker.apply({**HELLO, "pid1_start_ticks": 900}, NOW)
    assert seen(tracker).container_restarted


def test_no_driver_at_all_is_absent():
    tracker = tracker_of_a_living_run()
    tracker.apply({"type": "gpu", "gpus": [], "source": "none", "problem": "no NVML"}, NOW)
    assert tracker.gpus == Absent()


def test_a_driver_that_does_not_answer_is_blind_and_not_zero_gpus():
    tracker = tracker_of_a_living_run()
    tracker.apply({"type": "gpu", "gpus": [], "source": None, "problem": "no NVML"}, NOW)
    assert isinstance(tracker.gpus, Blind)
    tracker.apply({"type": "gpu", "gpus": [], "source": "nvml", "problem": None}, NOW)
    seen: object = tracker.gpus
    assert seen == Present(())


def test_a_stop_of_an_older_attempt_does_not_stop_this_one():
    tracker = tracker_of_a_living_run()
    tracker.apply(run_message(attempt=2, stop={"by": "user", "attempt": 1, "reason": "x"}), NOW)
    snapshot = tracker.snapshot(NOW)
    assert snapshot is not None
    assert snapshot.stop_by is None


def test_the_clock_skew_is_measured_once_a_connection():
    assert tracker_of_a_living_run().clock_skew_s == 3.0


def test_an_attempt_that_ends_before_it_was_ever_named_loses_neither_its_log_nor_its_end():
    tracker = tracker_of_a_living_run()
    sighting = tracker.apply(log_message(b"ModuleNotFoundError\n", 0, attempt=2), NOW)
    assert (sighting.attempt, sighting.log) == (2, b"ModuleNotFoundError\n")
    end = {"code": 1, "signal": None, "at": "2026-11-29T12:00:00Z", "duration_s": 0.1}
    tracker.apply(attempt_message("exit", end, attempt=2), NOW)
    snapshot = tracker.snapshot(NOW)
    assert snapshot is not None
    assert isinstance(snapshot.liveness, Blind), "that attempt 1 lived says nothing of attempt 2"
    tracker.apply(run_message(attempt=2, alive=False), NOW)
    snapshot = tracker.snapshot(NOW)
    assert snapshot is not None
    assert isinstance(snapshot.liveness, Present)
    assert isinstance(snapshot.exit, Present)


def test_that_an_older_attempt_is_gone_says_nothing_of_the_newest():
    tracker = tracker_of_a_living_run()
    tracker.apply(run_message(attempt=1, alive=False), NOW)
    tracker.apply({**run_message(attempt=2), "alive": None}, NOW)
    snapshot = tracker.snapshot(NOW)
    assert snapshot is not None
    assert isinstance(snapshot.liveness, Blind)


def test_no_log_byte_of_an_attempt_between_is_lost_after_a_cut():
    tracker = tracker_of_a_living_run()
    tracker.lost("reset")
    tracker.apply(run_message(attempt=3), NOW)
    sighting = tracker.apply(log_message(b"of two\n", 0, attempt=2), NOW)
    assert (sighting.of, sighting.log, sighting.attempt) == (2, b"of two\n", None)


def test_lxc_gives_each_start_of_a_container_a_boot_id_of_its_own_and_that_is_no_reboot():
    tracker = tracker_of_a_living_run()
    tracker.apply({**HELLO, "boot_id": "c", "pid1_start_ticks": 900}, NOW)
    assert seen(tracker).container_restarted
    assert not seen(tracker).host_rebooted


def test_ticks_that_count_from_another_boot_are_a_reboot_of_the_host():
    tracker = tracker_of_a_living_run()
    tracker.apply({**HELLO, "boot_id": "c", "pid1_start_ticks": 7}, NOW)
    assert seen(tracker).container_restarted
    assert seen(tracker).host_rebooted


def test_a_boot_id_alone_says_nothing_of_the_host():
    tracker = RunTracker("dflash")
    tracker.apply(HELLO, NOW)
    info = {"boot_id": "b", "pid1_start_ticks": 5}
    tracker.apply(run_message(attempt_info=info), NOW)
    tracker.apply({**HELLO, "boot_id": "c"}, NOW)
    assert not seen(tracker).host_rebooted
    tracker.apply(HELLO, NOW)
    assert not seen(tracker).host_rebooted


@pytest.mark.parametrize("uptime", [float("inf"), float("nan")])
def test_an_uptime_that_is_no_number_is_unknown(uptime):
    tracker = RunTracker("dflash")
    tracker.apply({**HELLO, "uptime_s": uptime}, NOW)
    assert tracker.host_up_s is None


@pytest.mark.parametrize("now", [float("inf"), float("nan"), None, "noon"])
def test_a_greeting_without_a_time_is_not_the_wires(now):
    with pytest.raises((TypeError, ValueError)):
        RunTracker("dflash").apply({**HELLO, "now": now}, NOW)
