"""Patterns over steps and attempts: each fires on what it names, and stays quiet on what looks like it."""

import random
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.classify.history import (
    StepTime,
    crash_loop,
    no_progress,
    resumed_from_zero,
    slowdown,
    stragglers,
    throughput_regression,
)
from orchestrator.ledger import Ledger, open_ledger
from orchestrator.types.decision import History, PastAttempt
from orchestrator.types.failure import FailureClass
from orchestrator.types.seen import Phase, Present
from tests.builders import NOW, ago, make_heartbeat, make_snapshot

DICE = random.Random(4)


def steps(times, attempt=1, begin=1):
    return [StepTime(attempt, begin + i, value) for i, value in enumerate(times)]


def about(seconds, count, spread=0.05):
    return [seconds * DICE.uniform(1 - spread, 1 + spread) for _ in range(count)]


# -- slower than before


def test_steps_that_take_twice_as_long_and_stay_so_are_a_regression_with_both_times():
    found = throughput_regression(steps(about(0.3, 100) + about(0.6, 25)), 1)
    assert found is not None
    assert found.failure is FailureClass.THROUGHPUT_REGRESSION
    assert "(106 to 125) take 0.6" in found.summary
    assert "times as long as the" in found.summary
    assert found.evidence[0].source == "history"


def test_slow_steps_that_last_do_not_become_their_own_measure():
    for count in (20, 30, 60, 90):
        assert throughput_regression(steps(about(0.3, 100) + about(0.6, count)), 1) is not None, count


def test_an_attempt_that_is_slower_than_the_ones_before_it_is_a_regression():
    rows = steps(about(0.3, 60)) + steps(about(0.5, 30), attempt=2, begin=61)
    found = throughput_regression(rows, 2)
    assert found is not None
    assert "1.7 times" in found.summary or "1.6 times" in found.summary


QUIET = {
    "too little to say": about(0.3, 30) + about(0.9, 20),
    "even": about(0.3, 200),
    "a tenth slower": about(0.3, 100) + about(0.33, 40),
    "slow at first": about(3.0, 5) + about(0.3, 120),
    "a slow spell that passed": about(0.3, 100) + about(0.9, 12) + about(0.3, 25),
    "a slow spell of now": about(0.3, 100) + about(0.9, 9),
    "now and then a slow one": [3.0 if i % 3 == 0 else 0.3 for i in range(150)],
    "two lengths that alternate": [0.3 if i % 40 < 20 else 0.6 for i in range(160)],
    "faster than before": about(0.6, 100) + about(0.3, 30),
}


@pytest.mark.parametrize("name", QUIET)
def test_what_is_no_regression_is_not_told(name):
    assert throughput_regression(steps(QUIET[name]), 1) is None


def test_the_first_steps_of_a_new_attempt_are_no_regression():
    rows = steps(about(0.3, 100)) + steps(about(4.0, 5) + about(0.3, 25), attempt=2, begin=101)
    assert throughput_regression(rows, 2) is None
    assert throughput_regression(rows[:120], 2) is None


def test_later_attempts_do_not_judge_earlier_ones():
    rows = steps(about(0.6, 90)) + steps(about(0.2, 90), attempt=2, begin=91)
    assert throughput_regression(rows, 1) is None


@given(st.lists(st.floats(min_value=0, max_value=1e9), max_size=150))
def test_any_times_give_an_answer(times):
    rows = steps(times)
    ratio, found = slowdown(rows, 1), throughput_regression(rows, 1)
    assert found is None or (ratio is not None and ratio >= 1.5)


# -- a slow rank


def ranked(*per_step):
    return [StepTime(1, i + 1, 1.0, dict(enumerate(times))) for i, times in enumerate(per_step)]


def test_a_rank_that_is_slower_in_every_step_is_named():
    found = stragglers(ranked(*[(0.2, 0.2, 0.32, 0.2)] * 25))
    assert found is not None
    assert found.summary == "rank 2 slower than the rest in the last 20 logged steps"
    assert (
        found.evidence[0].text == "rank 2: 0.32 s of its own work a step, 1.6 times the median of the others"
    )


def test_of_two_ranks_the_slower_is_named():
    found = stragglers(ranked(*[(0.2, 0.5)] * 20))
    assert found is not None
    assert found.summary.startswith("rank 1 ")


@pytest.mark.parametrize(
    "rows",
    [
        ranked(*[(0.2, 0.21, 0.19, 0.2)] * 30),
        ranked(*[tuple(0.5 if rank == i % 4 else 0.2 for rank in range(4)) for i in range(40)]),
        ranked(*[(0.2, 0.2, 0.4, 0.4)] * 30),
        ranked(*[(0.2, 0.2, 0.2, 0.9)] * 10),
        ranked(*[(0.2, 0.2, 0.2, 0.9)] * 12, *[(0.2, 0.2, 0.2, 0.2)] * 8),
        ranked(*[(0.4,)] * 30),
        steps(about(0.3, 60)),
    ],
    ids=["even", "turns", "two kinds", "too few", "passing", "alone", "nobody tells"],
)
def test_what_is_no_straggler_is_not_told(rows):
    assert stragglers(rows) is None


# -- the same step again, and the loop


def past(n, last=4012, *, first=4000, failure=FailureClass.NAN_LOSS, checkpoint=4000, ended_s=600.0):
    return PastAttempt(
        attempt=n, failure=failure, fingerprint=failure.value, started_at=ago(ended_s + 300),
        ended_at=ago(ended_s), first_step=first, last_step=last, checkpoint_step=checkpoint,
    )  # fmt: skip


def ledger(*attempts: PastAttempt) -> Ledger:
    snapshot = make_snapshot(attempt=len(attempts) + 1, heartbeat=Present(make_heartbeat(step=4012)))
    return open_ledger(History(attempts=attempts), snapshot)


def test_three_ends_at_one_step_are_no_progress_with_each_of_them_told():
    found = no_progress(ledger(past(1), past(2, failure=FailureClass.OOM_CUDA)), 4012)
    assert found is not None
    assert found.summary.startswith("3 attempts in a row ended at step 4012")
    assert [each.text for each in found.evidence] == [
        "attempt 1 from step 4000: nan_loss at step 4012, newest checkpoint 4000",
        "attempt 2 from step 4000: oom_cuda at step 4012, newest checkpoint 4000",
        "and this one ended at step 4012",
    ]


@pytest.mark.parametrize(
    ("attempts", "last"),
    [
        ((past(1), past(2)), 4013),
        ((past(1), past(2, 4100)), 4012),
        ((past(1),), 4012),
        ((past(1), past(2)), None),
        ((past(1, 0, first=0), past(2, 0, first=0)), 0),
        ((past(1, first=4012), past(2, first=4012)), 4012),
        ((past(1), past(2, failure=FailureClass.CONTAINER_RESTARTED)), 4012),
        ((past(1), replace(past(2), by_watch=False)), 4012),
    ],
    ids=[
        "further",
        "between further",
        "twice",
        "unknown",
        "never stepped",
        "no step made",
        "restarted",
        "by hand",
    ],
)
def test_what_is_no_poison_step_is_not_told(attempts, last):
    assert no_progress(ledger(*attempts), last) is None


def test_deaths_in_a_row_within_the_window_are_a_loop_told_with_its_history():
    found = crash_loop(ledger(*(past(n, 4000 + n, ended_s=60.0 * n) for n in range(1, 5))), NOW, 5, 1800)
    assert found is not None
    assert found.summary == "crash loop: 5 deaths within 30m, and no checkpoint advanced"
    assert len(found.evidence) == 4


def test_slow_deaths_and_deaths_with_progress_are_no_loop():
    slow = ledger(*(past(n, 4000 + n, ended_s=1000.0 * n) for n in range(1, 5)))
    assert crash_loop(slow, NOW, 5, 1800) is None
    moving = ledger(*(past(n, 4000 + n, checkpoint=4000 + n, ended_s=60.0) for n in range(1, 5)))
    assert crash_loop(moving, NOW, 5, 1800) is None
    assert crash_loop(moving, NOW + timedelta(hours=1), 2, 60) is None


# -- from zero


def test_training_from_zero_beside_a_checkpoint_is_told():
    found = resumed_from_zero(make_heartbeat(step=3, resumed_from_step=None), 2, 4000, 4000)
    assert found is not None
    assert found.failure is FailureClass.RESUMED_FROM_ZERO
    assert "the checkpoint of step 4000 is there" in found.summary


@pytest.mark.parametrize(
    ("beat", "attempt", "earlier", "on_disk"),
    [
        (make_heartbeat(step=4003, resumed_from_step=4000), 2, 4000, 4000),
        (make_heartbeat(step=3803, resumed_from_step=3800), 2, 4000, 4000),
        (make_heartbeat(step=3), 1, 4000, 4000),
        (make_heartbeat(step=0, phase=Phase.COMPILE), 2, 4000, 4000),
        (make_heartbeat(step=3), 2, 4000, None),
        (make_heartbeat(step=3), 2, 4000, 100),
        (make_heartbeat(step=103), 2, None, 100),
        (make_heartbeat(step=4200), 2, 4000, 4200),
        (None, 2, 4000, 4000),
    ],
    ids=["resumed", "an older one", "first", "not yet", "removed", "replaced", "own", "past it", "no word"],
)
def test_what_did_not_begin_from_zero_is_not_told(beat, attempt, earlier, on_disk):
    assert resumed_from_zero(beat, attempt, earlier, on_disk) is None
