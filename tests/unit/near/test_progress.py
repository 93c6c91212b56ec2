"""What the tracker takes for progress, what it measures of it, and what a set clock does to both."""

from datetime import timedelta

from orchestrator.classify import Limits, diagnose
from orchestrator.observe import RunTracker
from orchestrator.types.failure import RunState
from orchestrator.types.seen import Phase
from orchestrator.wire import pack_bytes
from tests.builders import NOW, attempt_message, heartbeat_json, run_message

HELLO = {"type": "hello", "now": NOW.timestamp(), "boot_id": "b", "pid1_start_ticks": 5}
LIMITS = Limits(train_s=60)


def after(seconds):
    return NOW + timedelta(seconds=seconds)


def gpus(*readings):
    rows = [{"index": i, "utilization_pct": u, "power_w": w} for i, (u, w) in enumerate(readings)]
    return {"type": "gpu", "gpus": rows, "source": "nvml", "problem": None}


def training(gpus_wanted=None):
    tracker = RunTracker("dflash")
    tracker.apply(HELLO, NOW)
    tracker.apply(run_message(spec={"run": "dflash", "kind": "trainer", "gpus": gpus_wanted}), NOW)
    beat(tracker, 0, step=1)
    return tracker


def beat(tracker, at, step=1, phase="train"):
    tracker.apply(attempt_message("heartbeat", heartbeat_json(step=step, phase=phase)), after(at))


def pongs(tracker, begin, end):
    """The guest goes on speaking, so that the time counts."""
    for at in range(begin, end + 1, 5):
        tracker.apply({"type": "pong", "now": 0.0}, after(at))


def state(tracker, at):
    snapshot = tracker.snapshot(after(at))
    assert snapshot is not None
    return diagnose(snapshot, LIMITS).state


def test_a_still_run_is_hung_once_its_limit_passed_under_watch():
    tracker = training()
    pongs(tracker, 0, 65)
    assert state(tracker, 59) is RunState.HEALTHY
    assert state(tracker, 65) is RunState.HUNG


def test_a_watcher_that_slept_calls_nothing_hung():
    tracker = training()
    tracker.apply({"type": "pong", "now": 0.0}, after(8 * 3600))  # a laptop was closed in between
    assert state(tracker, 8 * 3600 + 1) is RunState.HEALTHY
    pongs(tracker, 8 * 3600, 8 * 3600 + 70)
    assert state(tracker, 8 * 3600 + 70) is RunState.HUNG, "what was watched still counts"


def test_a_clock_set_forward_calls_nothing_hung():
    tracker = training()
    pongs(tracker, 0, 30)
    pongs(tracker, 3630, 3640)
    assert state(tracker, 3640) is RunState.HEALTHY


def test_a_clock_set_back_hides_a_hang_for_no_longer_than_its_limit():
    tracker = training()
    pongs(tracker, 0, 30)
    pongs(tracker, -3570, -3530)  # set back by an hour
    assert state(tracker, -3530) is RunState.HUNG


def test_steps_of_the_log_and_of_the_metrics_are_progress():
    tracker = training()
    pongs(tracker, 0, 50)
    line = b"step 2/10 loss 2.5 lr 1.0e-04 grad 0.50 1.0 ktok/s 0.30 s/step\n"
    log = {"type": "log", "run": "dflash", "attempt": 1, "offset": 0, "data": pack_bytes(line)}
    tracker.apply(log, after(55))
    assert state(tracker, 56) is RunState.HEALTHY
    pongs(tracker, 60, 110)
    row = {"kind": "train", "step": 3, "step_s": 1.0}
    metrics = {
        "type": "metrics",
        "run": "dflash",
        "attempt": 1,
        "offset": 0,
        "next_offset": 9,
        "lines": [row],
    }
    tracker.apply(metrics, after(110))
    pongs(tracker, 110, 160)
    assert state(tracker, 165) is RunState.HEALTHY
    pongs(tracker, 165, 175)
    assert state(tracker, 175) is RunState.HUNG, "the same step told again is none"


def test_the_length_of_phases_that_ended_is_measured():
    tracker = training()
    for begin in (10, 110, 210):
        beat(tracker, begin, step=begin, phase="eval")
        pongs(tracker, begin, begin + 40)
        beat(tracker, begin + 40, step=begin, phase="train")
        pongs(tracker, begin + 40, begin + 95)
    assert tracker.median_phase_s[Phase.EVAL] == 40.0


def test_the_gpus_are_read_apart_before_and_since_the_last_step():
    tracker = training()
    tracker.apply(gpus((97.0, 430.0), (95.0, 410.0)), after(1))
    tracker.apply(gpus((100.0, 121.0), (100.0, 119.0)), after(20))
    tracker.apply(gpus((100.0, 118.0), (100.0, 119.0)), after(39))
    snapshot = tracker.snapshot(after(40))
    assert snapshot is not None
    first, second = snapshot.gpus_still
    assert (first.utilization_pct, first.power_w, first.stepping_w) == ((100.0, 100.0), (118.0, 121.0), 430.0)
    assert (second.index, second.stepping_w) == (1, 410.0)
    beat(tracker, 41, step=2)
    snapshot = tracker.snapshot(after(42))
    assert snapshot is not None
    assert snapshot.gpus_still == (), "a step was made: nothing is still"


def test_only_the_run_s_own_gpus_are_read():
    tracker = training(gpus_wanted=[1])
    tracker.apply(gpus((97.0, 430.0), (0.0, 60.0)), after(20))
    snapshot = tracker.snapshot(after(21))
    assert snapshot is not None
    assert [gpu.index for gpu in snapshot.gpus_still] == [1]


def test_a_reading_that_does_not_change_is_sent_once_and_stands():
    tracker = training()
    tracker.apply(gpus((0.0, 60.0)), after(1))
    snapshot = tracker.snapshot(after(19))
    assert snapshot is not None
    assert [gpu.utilization_pct for gpu in snapshot.gpus_still] == [(0.0, 0.0)]
