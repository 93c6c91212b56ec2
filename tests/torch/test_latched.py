"""A host that is a step ahead of its device trains, skips, goes back, saves and ends as one that is not."""

import math
from dataclasses import replace
from itertools import combinations

import pytest
import torch

from tests.torch.looplab import CONFIG, Lab, assert_same, compare_verdicts, given, with_guard
from tests.torch.reading import NoReading, reads
from trainer.config import GuardConfig
from trainer.latch import Latch

pytestmark = pytest.mark.torch
STEPS = CONFIG.total_steps
LENIENT = with_guard(CONFIG, max_skips=1, max_rollbacks=2)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def both(folder, config=CONFIG, poison=(), **more):
    """The same run twice, the second with the host ahead."""
    stop_in = more.pop("stop_in", None)
    labs = [Lab(folder / name, config, poison, **more) for name in ("waits", "ahead")]
    found = [
        lab.run(runs_ahead=ahead, stop_in=stop_in) for lab, ahead in zip(labs, (False, True), strict=True)
    ]
    assert_same(found[1], found[0])
    return found[1]


def test_a_step_is_queued_before_the_one_before_it_is_known(tmp_path):
    loop = Lab(tmp_path, CONFIG).make(runs_ahead=True)
    behind = []
    given(loop).on_fetch = lambda index: behind.append(index - loop.step)
    loop.run()
    # Known at once: before the evaluation of step 6 and the checkpoints of steps 4, 8 and 12.
    assert behind == [0, 1, 1, 1, 0, 1, 0, 1, 0, 1, 1, 1]


def test_queueing_steps_reads_no_value_for_which_a_gpu_would_be_waited_for(tmp_path):
    stepper = Lab(tmp_path, is_fused=True).make(runs_ahead=True).stepper
    with NoReading():
        queued = []
        for step in range(2):
            stepper.begin()
            queued.append(stepper.queue(step))
    assert [stepper.read(each).is_applied for each in queued] == [True, True]


def test_reading_a_value_would_be_seen():
    assert reads(torch.ones(()))


def test_without_it_each_step_is_known_before_the_next(tmp_path):
    loop = Lab(tmp_path, CONFIG).make(runs_ahead=False)
    behind = []
    given(loop).on_fetch = lambda index: behind.append(index - loop.step)
    loop.run()
    assert behind == [0] * STEPS


@pytest.mark.parametrize("is_fused", [False, True])
def test_a_good_run_is_the_same(tmp_path, is_fused):
    found = both(tmp_path, is_fused=is_fused)
    assert found["step"] == STEPS
    assert [line["step"] for line in found["metrics"] if line["kind"] == "train"] == [3, 6, 9, 12]
    assert not found["skips"]


def few(quick, every):
    """All of `every`, of which only the `quick` ones are no slow test."""
    return [
        pytest.param(each, marks=() if each in quick else pytest.mark.slow, id=str(each)) for each in every
    ]


@pytest.mark.parametrize(
    "is_fused", [pytest.param(False, marks=pytest.mark.slow), True], ids=["read by the host", "fused"]
)
@pytest.mark.parametrize("bad", few([0, 3, 6, 11], range(STEPS)))
def test_a_bad_step_anywhere_is_left_out_the_same(tmp_path, bad, is_fused):
    found = both(tmp_path, LENIENT, [bad], is_fused=is_fused)
    assert [line["step"] for line in found["skips"]] == [bad + 1]
    assert (found["step"], found["ended"]) == (STEPS, "")


@pytest.mark.parametrize(
    "bad",
    few([(1, 2), (4, 5), (10, 11)], [(each, each + gap) for gap in (1, 2) for each in range(STEPS - gap)]),
)
def test_two_bad_steps_anywhere_end_the_same(tmp_path, bad):
    found = both(tmp_path, LENIENT, bad)
    is_row = bad[1] == bad[0] + 1
    is_saved = bad[0] >= 4  # by step 4, unless that was left out
    is_end = bad[1] == STEPS - 1  # what made the last step bad may be in the weights
    assert found["heartbeat"]["rollbacks"] == (is_saved and (is_row or is_end))
    assert found["ended"].startswith("NonFinite") == (is_row and not is_saved)


@pytest.mark.slow
def test_three_bad_steps_end_the_same(tmp_path):
    for index, bad in enumerate(combinations(range(1, STEPS, 2), 3)):
        both(tmp_path / str(index), LENIENT, bad, is_fused=True)


def test_a_run_that_skips_nothing_ends_at_the_first_bad_step_with_the_weights_before_it(tmp_path):
    config = with_guard(CONFIG, max_skips=0)
    found = both(tmp_path, config, [5])
    assert found["ended"].startswith("NonFinite: step 6")
    assert (found["step"], found["heartbeat"]["step"]) == (5, 5)
    shorter = Lab(tmp_path / "shorter", config).run(runs_ahead=False, stop_in=4)
    assert all(torch.equal(value, found["bits"][name]) for name, value in shorter["bits"].items())


def test_gradients_too_large_are_left_out_the_same(tmp_path):
    config = with_guard(replace(CONFIG, total_steps=24), spike_factor=1.3, spike_window=8, max_skips=30)
    found = both(tmp_path, config, is_fused=True)
    reasons = {line["reason"] for line in found["skips"]}
    assert reasons == {"spike"}
    assert 2 <= len(found["skips"]) <= 12
    assert found["step"] == 24


@pytest.mark.parametrize("stop_in", few([5], [2, 3, 5]))
def test_a_stop_saves_the_last_step_and_the_rest_is_the_undisturbed_run(tmp_path, stop_in):
    straight = Lab(tmp_path / "straight").run(runs_ahead=False)
    stopped = both(tmp_path, stop_in=stop_in)
    assert stopped["ended"].startswith(f"Interrupted: stopped as asked by SIGTERM after step {stop_in + 1};")
    assert stop_in + 1 in stopped["checkpoints"]
    resumed = Lab(tmp_path / "ahead").run(runs_ahead=True)
    assert all(torch.equal(value, straight["bits"][name]) for name, value in resumed["bits"].items())
    assert resumed["guard"] == straight["guard"]


def test_a_stop_while_a_bad_step_is_queued_is_the_same(tmp_path):
    found = both(tmp_path, LENIENT, [5], stop_in=5)
    assert found["ended"].startswith("Interrupted: stopped as asked by SIGTERM after step 6;")
    assert [line["step"] for line in found["skips"]] == [6]


def test_steps_left_out_before_are_left_out_again(tmp_path):
    Lab(tmp_path / "first", LENIENT, [5, 9]).run(runs_ahead=False)
    for name in ("waits", "ahead"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "skips.jsonl").write_bytes((tmp_path / "first/skips.jsonl").read_bytes())
    found = both(tmp_path, LENIENT)
    assert found["step"] == STEPS
    assert len(found["skips"]) == 2


def failing(lab, micro_batch):
    """A loop with the host ahead, after an error in a micro-batch."""
    loop = lab.make(runs_ahead=True)

    def fail(index):
        if index == micro_batch:
            raise OSError("a shard is gone")

    given(loop).on_fetch = fail
    with pytest.raises(OSError, match="a shard is gone"):
        loop.run()
    return loop


def test_an_error_tells_the_step_before_it_though_that_one_was_only_queued(tmp_path):
    loop = failing(Lab(tmp_path), 7)
    assert (loop.step, loop.job.heartbeat.step) == (6, 7)


def test_an_error_behind_a_bad_step_that_nobody_read_tells_the_last_good_one(tmp_path):
    loop = failing(Lab(tmp_path, LENIENT, [6]), 7)
    assert (loop.step, loop.job.heartbeat.step) == (6, 6)


@pytest.mark.parametrize("window", [8, 9])
@pytest.mark.parametrize("factor", [0.0, 1.3, 20.0])
def test_the_latch_says_what_the_guard_says(window, factor):
    assert compare_verdicts(torch.device("cpu"), window, factor) > 20


def test_a_shut_latch_lets_nothing_through_until_it_is_opened():
    latch = Latch(GuardConfig(), torch.device("cpu"))
    good, bad = (torch.tensor(value, dtype=torch.float64) for value in (1.0, math.nan))
    assert [float(latch.judge(good, each)) for each in (good, bad, good, good)] == [0, 1, 1, 1]
    latch.open([1.0])
    assert float(latch.judge(good, good)) == 0
