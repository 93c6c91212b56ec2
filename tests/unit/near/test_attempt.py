"""One attempt's files folded into what is known of it, and the boot that it began in."""

from __future__ import annotations

from datetime import timedelta

import pytest

from orchestrator.classify.course import step_time
from orchestrator.classify.history import StepTime
from orchestrator.observe.attempt import AttemptView
from orchestrator.observe.boot import Boot
from orchestrator.types.seen import Blind, Phase, Present
from orchestrator.wire import pack_bytes
from tests.builders import NOW, attempt_message, heartbeat_json


def log(data: bytes, offset: int, **more: object) -> dict[str, object]:
    return {"type": "log", "run": "dflash", "attempt": 1, "offset": offset, "data": pack_bytes(data), **more}


def test_what_overlaps_after_a_reconnect_is_taken_once():
    view = AttemptView(number=1)
    view.take(log(b"step 1\nste", 0), NOW)
    sighting = view.take(log(b"step 2\n", 7), NOW)
    assert (sighting.log, sighting.log_offset, view.log_offset) == (b"p 2\n", 10, 14)
    assert view.take(log(b"step 2\n", 7), NOW).log == b""


def test_a_log_that_was_emptied_shows_only_what_is_in_it_now():
    view = AttemptView(number=1)
    view.take(log(b"RuntimeError: NCCL error\n", 0), NOW)
    sighting = view.take(log(b"step 5/9 loss 2.0\n", 0, anew=True), NOW)
    assert (sighting.is_log_anew, view.log_offset) == (True, 18)
    assert view.log_reading().tail == ("step 5/9 loss 2.0",)


def test_a_damaged_file_is_blind_and_says_nothing_else():
    view = AttemptView(number=1)
    view.take(attempt_message("exit", {"code": "no number"}), NOW)
    assert isinstance(view.exit, Blind)
    assert view.take(attempt_message("heartbeat", {"phase": "?"}), NOW).heartbeat
    assert isinstance(view.heartbeat, Blind)
    assert (view.heartbeat_seen_at, view.first_step) == (None, None)


def test_steps_told_by_the_metrics_are_progress_and_only_those_of_training_are_timed():
    view = AttemptView(number=1)
    rows = [{"kind": "train", "step": 4, "step_s": 0.5}, {"kind": "eval", "step": 4, "step_s": 9.0}]
    message = {
        "type": "metrics",
        "run": "dflash",
        "attempt": 1,
        "offset": 0,
        "next_offset": 80,
        "lines": rows,
    }
    sighting = view.take(message, NOW)
    assert (sighting.of, len(sighting.metrics), view.metrics_offset) == (1, 2, 80)
    assert (view.step_times, view.step_seen_at) == ([0.5], NOW)


@pytest.mark.parametrize("step_s", [float("inf"), float("nan"), 10**400, -(10**400), True, "0.5", None])
def test_a_time_that_is_no_finite_number_is_not_taken_and_harms_nothing(step_s):
    view = AttemptView(number=1)
    lines = [
        {"kind": "train", "step": 4, "step_s": step_s},
        {"kind": "train", "step": True, "step_s": 0.5},
        {"kind": "train", "step": 5, "step_s": 0.5},
    ]
    view.take({"type": "metrics", "attempt": 1, "offset": 0, "next_offset": 80, "lines": lines}, NOW)
    assert view.step_times == [0.5, 0.5]
    assert step_time(1, lines[0]) is None
    assert step_time(1, lines[1]) is None
    assert step_time(1, lines[2]) == StepTime(1, 5, 0.5)
    ranks = {**lines[2], "rank_s": [0.5, step_s]}
    assert step_time(1, ranks) == StepTime(1, 5, 0.5, None)


def test_a_heartbeat_that_says_the_same_again_is_no_progress():
    view = AttemptView(number=1)
    view.take(attempt_message("heartbeat", heartbeat_json(step=7)), NOW)
    view.take(attempt_message("heartbeat", heartbeat_json(step=7)), NOW + timedelta(seconds=9))
    assert view.heartbeat_seen_at == NOW
    assert isinstance(view.heartbeat, Present)
    assert view.heartbeat.value.phase is Phase.TRAIN


def test_a_beginning_that_is_no_time_is_not_known():
    view = AttemptView(number=1)
    assert view.began_at is None
    view.info = {"started_at": "2026-11-29T12:00:00.000000Z"}
    assert view.began_at == NOW
    for nonsense in ("soon", "9999-99-99T00:00:00Z", 7, None):
        view.info = {"started_at": nonsense}
        assert view.began_at is None


@pytest.mark.parametrize(
    ("now", "is_another", "is_host"),
    [
        (Boot("b", 50), False, False),
        (Boot("b", 900), True, False),
        (Boot("c", 900), True, False),
        (Boot("c", 7), True, True),
        (Boot(None, None), True, False),
        (Boot("c", "7"), True, False),
    ],
    ids=["the same", "restarted", "restarted, as LXC tells it", "rebooted", "not told", "nonsense"],
)
def test_only_ticks_of_another_boot_prove_a_reboot_of_the_host(now, is_another, is_host):
    info = {"boot_id": "b", "pid1_start_ticks": 50, "supervisor_start_ticks": 600}
    assert (now.is_another(info), now.is_of_another_host_boot(info)) == (is_another, is_host)
