"""A program without a heartbeat hangs only where its log taught, or its owner said, what silence means."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.classify import Limits, LogScanner, diagnose
from orchestrator.types.failure import FailureClass, RunState
from orchestrator.types.seen import Absent, Blind, GpuStill, Liveness, Present
from orchestrator.types.snapshot import LogPace, LogReading
from tests.builders import GONE, ago, make_exit, make_snapshot

LIMITS = Limits(train_s=60, eval_s=60, checkpoint_s=60, export_s=60, train_steps=5)
OWN = replace(LIMITS, silence_s=120.0)
SPINS = GpuStill(index=0, utilization_pct=(100.0, 100.0), power_w=(118.0, 121.0), stepping_w=430.0)
IDLES = GpuStill(index=0, utilization_pct=(0.0, 0.0), power_w=(70.0, 71.0), stepping_w=430.0)
BURSTS = GpuStill(index=0, utilization_pct=(0.0, 97.0), power_w=(80.0, 400.0), stepping_w=430.0)
COMPUTES = GpuStill(index=0, utilization_pct=(96.0, 100.0), power_w=(410.0, 440.0), stepping_w=430.0)
STEPS = LogReading(read_bytes=100, last_step=40, mark=40.0)
WORDS = LogReading(read_bytes=100)


def silent(silent_s: float = 100, log: LogReading = STEPS, **changes):
    """A command whose log told a step each 2 s, and then nothing for so long."""
    pace: dict[str, Any] = {"quiet_since": ago(silent_s), "num_steps": 20, "step_s": 2.0, "pause_s": 4.0}
    pace |= changes.pop("pace", {})
    if log.mark is None:
        pace |= {"num_steps": 0, "step_s": None}
    fields = {"kind": "command", "heartbeat": Absent(), "log": log, "log_grew_at": ago(silent_s)}
    return make_snapshot(**{**fields, "heartbeat_seen_at": None, "log_pace": LogPace(**pace), **changes})


def state(snapshot, limits=LIMITS):
    return diagnose(snapshot, limits).state


def test_steps_that_stop_in_a_silent_log_are_a_hang_and_its_evidence_says_each_reading():
    found = diagnose(silent(gpus_still=(SPINS,)), LIMITS)
    assert (found.state, found.failure, found.confidence) == (RunState.HUNG, FailureClass.HANG, 0.95)
    assert found.summary.startswith("hung: its log fell silent at step 40 for 1m40s (limit 1m)")
    assert "its GPUs spin at 100 %" in found.summary
    assert [(each.source, each.text) for each in found.evidence] == [
        ("log", "its log fell silent at step 40 for 1m40s"),
        ("gpu", "GPU 0: 100 % at 118 to 121 W since, 430 W while it stepped"),
        ("log", "last printed 1m40s ago"),
        ("host", "the container is running"),
    ]
    assert diagnose(silent(), LIMITS).confidence == 0.9, "without GPUs it is a hang as well"


def test_a_stop_for_it_keeps_its_name_so_that_its_budget_is_counted():
    hung = diagnose(silent(), LIMITS)
    stopped: dict[str, Any] = {
        "liveness": Present(GONE),
        "exit": Present(make_exit(None, 15)),
        "stop_by": "watch",
    }
    dead = diagnose(silent(**stopped), LIMITS)
    assert (dead.state, dead.failure) == (RunState.DEAD, FailureClass.HANG)
    assert dead.fingerprint == hung.fingerprint


def test_within_the_limit_it_lives_and_says_what_would_be_a_hang():
    found = diagnose(silent(55), LIMITS)
    assert found.state is RunState.HEALTHY
    assert "so a log that is silent for 1m is a hang" in found.summary


def test_a_program_that_does_not_tell_its_phase_may_take_as_long_as_the_longest():
    assert state(silent(100), replace(LIMITS, eval_s=300)) is RunState.HEALTHY
    assert state(silent(100), replace(LIMITS, checkpoint_s=300)) is RunState.HEALTHY
    assert state(silent(100), Limits()) is RunState.HEALTHY


def test_slow_steps_and_a_pause_that_ended_before_lengthen_the_limit():
    assert state(silent(100, pace={"step_s": 25.0})) is RunState.HEALTHY
    assert state(silent(130, pace={"step_s": 25.0})) is RunState.HUNG
    assert state(silent(100, pace={"pause_s": 70.0})) is RunState.HEALTHY, "an evaluation as long as the last"
    assert state(silent(145, pace={"pause_s": 70.0})) is RunState.HUNG


def test_a_few_steps_teach_nothing():
    assert state(silent(10_000, pace={"num_steps": 4})) is RunState.HEALTHY
    assert "once a watch has learned" in diagnose(silent(pace={"num_steps": 4}), LIMITS).summary


def test_after_the_last_of_its_steps_it_may_be_silent_unless_its_owner_said_how_long():
    last = replace(STEPS, is_last_step=True)
    found = diagnose(silent(10_000, last), LIMITS)
    assert (found.state, "after the last of its steps" in found.summary) == (RunState.HEALTHY, True)
    assert state(silent(10_000, last), OWN) is RunState.HUNG


def test_a_log_without_steps_is_no_hang_by_itself_and_says_how_one_would_be_seen():
    found = diagnose(silent(1e7, WORDS, gpus_still=(IDLES,)), LIMITS)
    assert found.state is RunState.HEALTHY
    assert "a hang would not be seen; a playbook's `limits: {silence: 30m}`" in found.summary


@pytest.mark.parametrize("log", [WORDS, STEPS, LogReading()])
def test_the_owners_word_on_silence_alone_counts(log):
    assert state(silent(115, log), OWN) is not RunState.HUNG
    assert state(silent(125, log), OWN) is RunState.HUNG


def test_the_owners_word_counts_for_programs_without_a_heartbeat_only():
    assert state(silent(1e6, kind="trainer"), OWN) is RunState.HEALTHY
    assert state(make_snapshot(log_pace=LogPace(quiet_since=ago(1e6))), OWN) is RunState.HEALTHY
    assert state(silent(1e6, heartbeat=Blind("no JSON")), OWN) is RunState.HEALTHY


@pytest.mark.parametrize("limits", [LIMITS, OWN])
@pytest.mark.parametrize("gpu", [BURSTS, COMPUTES])
def test_gpus_at_work_hold_it_back_to_twice_the_limit_and_no_more(limits, gpu):
    limit_s = limits.silence_s or 60
    assert state(silent(limit_s * 1.9, gpus_still=(gpu,)), limits) is RunState.HEALTHY
    assert state(silent(limit_s * 2.1, gpus_still=(gpu,)), limits) is RunState.HUNG


@pytest.mark.parametrize("limits", [LIMITS, OWN])
@pytest.mark.parametrize(
    "sign",
    [
        {"container": "frozen"},
        {"container": "locked:backup"},
        {"liveness": Blind("cut")},
        {"stop_by": "user"},
        {"pace": {"quiet_since": None}},
        {"pace": {"quiet_since": ago(1)}},
        {"pace": {"quiet_since": ago(-500)}},
    ],
)
def test_what_is_held_unseen_or_prints_is_no_hang(limits, sign):
    assert state(silent(**{"silent_s": 1e6, **sign}), limits) is not RunState.HUNG


@given(
    st.floats(-100, 1e6), st.integers(0, 60), st.none() | st.floats(0, 1e6), st.floats(0, 1e6),
    st.none() | st.floats(0.001, 1e6), st.booleans(), st.lists(st.sampled_from([SPINS, IDLES, BURSTS])),
)  # fmt: skip
def test_whatever_is_read_only_a_known_limit_that_passed_makes_a_hang(
    silent_s, num, step_s, pause_s, own, is_last, gpus
):
    pace = {"num_steps": num, "step_s": step_s, "pause_s": pause_s}
    log, limits = replace(STEPS, is_last_step=is_last), replace(LIMITS, silence_s=own)
    snapshot = silent(silent_s, log, pace=pace, gpus_still=tuple(gpus))
    found = diagnose(snapshot, limits)
    silent_s = (snapshot.now - snapshot.log_pace.quiet_since).total_seconds()
    if found.state is RunState.HUNG:
        is_taught = step_s is not None and num >= 5 and not is_last and silent_s > max(60, 2 * pause_s)
        assert silent_s > own if own is not None else is_taught
    elif own is not None:
        assert silent_s <= 2 * own


@pytest.mark.parametrize(
    ("line", "mark", "is_last"),
    [
        ("step 380/380 loss 2.1", 380.0, True),
        ("step 379/380 loss 2.1", 379.0, False),
        ("step 38 of 38: loss 2.1", 38.0, True),
        (" iteration    5000/    5000 | lm loss: 2.1 |", 5000.0, True),
        ("100%|#########| 1000/1000 [10:00<00:00,  1.7it/s, loss=2.1]", 1000.0, True),
        (" 99%|######## | 999/1000 [10:00<00:00,  1.7it/s, loss=2.1]", 999.0, False),
        ("step 38/3800 loss 2.1", 38.0, False),
        ("{'loss': 2.1, 'epoch': 3.0}", 3.0, False),
    ],
)
def test_a_line_that_says_it_is_the_last_is_known_by_its_total(line, mark, is_last):
    scanner = LogScanner()
    scanner.feed(f"begin\n{line}\n".encode(), 0)
    reading = scanner.reading()
    assert (reading.mark, reading.is_last_step) == (mark, is_last)


def test_the_newest_step_line_counts_whatever_lines_come_between():
    scanner = LogScanner()
    for number in range(1, 9):
        scanner.feed(f"step {number}/8 loss 2.{number}\nsaved\n".encode(), scanner.reading().read_bytes)
    assert (scanner.reading().mark, scanner.reading().is_last_step) == (8.0, True)
    scanner.feed(b"epoch 2\nstep 1/8 loss 2.0\n", scanner.reading().read_bytes)
    assert (scanner.reading().mark, scanner.reading().is_last_step) == (1.0, False)


def test_without_a_supervisor_too_a_silent_log_is_a_hang():
    alone = Present(Liveness(lock_held=True, pids=(7,), supervisor=False, session=True))
    assert state(silent(liveness=alone)) is RunState.HUNG
    assert state(silent(10, liveness=alone)) is RunState.UNSUPERVISED
    assert state(silent(liveness=alone, heartbeat=Blind("torn"))) is RunState.UNSUPERVISED
