"""What a log teaches of its own pace: watched intervals only, and no past that is read at once."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from orchestrator.observe import RunTracker
from orchestrator.observe.logtrack import PAST_BYTES, LogTrack
from orchestrator.types.seen import GpuStill
from orchestrator.wire import pack_bytes
from tests.builders import NOW, run_message

if TYPE_CHECKING:
    from orchestrator.types.snapshot import Snapshot

HELLO = {"type": "hello", "now": NOW.timestamp(), "boot_id": "b", "pid1_start_ticks": 5}
SPEC = {"run": "dflash", "kind": "command", "gpus": [0]}


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def track(*steps: tuple[float, float], num_bytes: int = 20) -> LogTrack:
    """A log that told each mark at its time."""
    made = LogTrack()
    made.begin(NOW)
    for when, mark in steps:
        made.grew(num_bytes, at(when))
        made.told(mark, at(when))
    return made


def test_the_median_is_of_watched_intervals_and_the_first_was_seen_too_late_to_count():
    pace = track((5, 10), (6, 11), (16, 12), (26, 13), (46, 14)).pace()
    assert (pace.num_steps, pace.step_s, pace.pause_s) == (3, 10.0, 20.0)
    assert pace.quiet_since == at(46)


def test_a_new_epoch_that_counts_from_one_again_is_progress():
    assert track((1, 98), (2, 99), (3, 100), (4, 1), (5, 2)).pace().num_steps == 3


def test_the_same_step_told_again_is_none():
    made = track((1, 1), (2, 2), (3, 3))
    made.told(3, at(60))
    assert made.pace().num_steps == 1


def test_a_past_that_is_read_at_once_teaches_nothing():
    made = track(*((0.1 * n, n) for n in range(50)), num_bytes=PAST_BYTES)
    assert made.pace().num_steps == 0
    made.grew(20, at(900))
    made.told(100, at(900))
    assert made.pace().num_steps == 0, "nor does the first step after it"


def test_an_interval_that_was_not_watched_to_its_end_is_left_out():
    made = track((1, 1), (2, 2), (3, 3))
    made.forgive(timedelta(seconds=3600))
    made.grew(20, at(3700))
    made.told(4, at(3700))
    pace = made.pace()
    assert (pace.num_steps, pace.pause_s) == (1, 97.0)


# -- through the tracker, as the stream brings it


def command() -> RunTracker:
    tracker = RunTracker("dflash")
    tracker.apply(HELLO, NOW)
    tracker.apply(run_message(spec=SPEC), NOW)
    return tracker


def seen(tracker: RunTracker, now: datetime) -> Snapshot:
    snapshot = tracker.snapshot(now)
    assert snapshot is not None
    return snapshot


def say(tracker: RunTracker, when: float, text: str) -> None:
    assert tracker.view is not None
    offset = tracker.view.log_offset
    body = {"type": "log", "run": "dflash", "attempt": 1, "offset": offset, "data": pack_bytes(text.encode())}
    tracker.apply(body, at(when))
    tracker.snapshot(at(when))


def gpu(utilization: float, power: float) -> dict[str, object]:
    body = {"index": 0, "utilization_pct": utilization, "power_w": power, "processes": []}
    return {"type": "gpu", "gpus": [body], "source": "nvml", "problem": None}


@pytest.mark.parametrize(
    "line",
    [
        "step {n}/900 loss 2.1",
        "{{'loss': 2.1, 'epoch': 0.{n}}}",
        "Train Epoch: 1 [{n}00/60000 (1%)]\tLoss: 2.1",
        "Steps:   0%|#        | {n}/19700 [01:12<9:34:50,  1.75s/it, loss=2.1]",
    ],
)
def test_the_pace_is_learned_in_the_step_lines_of_many_trainers(line):
    tracker = command()
    for n in range(1, 9):
        say(tracker, 3 * n, line.format(n=n) + "\n")
    pace = seen(tracker, at(30)).log_pace
    assert (pace.num_steps, pace.step_s, pace.quiet_since) == (6, 3.0, at(24))


def test_a_log_that_tells_no_steps_has_a_silence_and_no_pace():
    tracker = command()
    say(tracker, 4, "Resolving data files: 100%\n")
    say(tracker, 9, "still here\n")
    pace = seen(tracker, at(30)).log_pace
    assert (pace.num_steps, pace.step_s, pace.quiet_since, pace.pause_s) == (0, None, at(9), 5.0)


def test_the_silence_of_a_command_that_never_printed_counts_from_its_first_sight():
    assert seen(command(), at(15)).log_pace.quiet_since == NOW


def test_time_without_a_word_of_the_guest_counts_for_no_silence():
    tracker = command()
    say(tracker, 1, "working\n")
    tracker.apply({"type": "pong"}, at(3601))
    assert seen(tracker, at(3601)).log_pace.quiet_since == at(3601)


def test_the_gpus_of_a_command_are_still_since_its_log_is_silent():
    tracker = command()
    for n in range(1, 9):
        say(tracker, 3 * n, f"step {n} loss 2.1\n")
        tracker.apply(gpu(95.0, 430.0), at(3 * n + 1))
    assert seen(tracker, at(27)).gpus_still == ()
    tracker.apply(gpu(100.0, 120.0), at(31))
    assert seen(tracker, at(32)).gpus_still == (
        GpuStill(index=0, utilization_pct=(100.0, 100.0), power_w=(120.0, 120.0), stepping_w=430.0),
    )


def test_bursts_before_the_last_printed_line_are_of_the_past_where_no_steps_are_told():
    tracker = command()
    for when, utilization in ((10, 0.0), (20, 97.0)):
        tracker.apply(gpu(utilization, 300.0), at(when))
    say(tracker, 30, "saved to disk\n")
    tracker.apply(gpu(1.0, 70.0), at(40))
    assert seen(tracker, at(41)).gpus_still == (
        GpuStill(index=0, utilization_pct=(1.0, 1.0), power_w=(70.0, 70.0), stepping_w=None),
    )
