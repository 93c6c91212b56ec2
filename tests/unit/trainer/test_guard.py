import json
import math
import os

import pytest

from trainer.config import GuardConfig
from trainer.guard import Guard, Reason, Verdict
from trainer.skips import Skips

NAN = math.nan
CONFIG = GuardConfig(max_skips=2, max_rollbacks=1, spike_factor=10.0, spike_window=8)


def judge(guard, step, norm, loss=2.0, *, finite=True, can_roll_back=True):
    return guard.judge(step, loss, norm, finite=finite, can_roll_back=can_roll_back)


def verdicts(norms, guard=None, **more):
    guard = guard or Guard(CONFIG)
    return [judge(guard, step, norm, **more).verdict for step, norm in enumerate(norms)]


GOOD, SKIP, ROLLBACK, GIVE_UP = Verdict


@pytest.mark.parametrize(
    ("loss", "norm", "finite"), [(NAN, 1.0, True), (2.0, NAN, True), (2.0, math.inf, True), (2.0, 1.0, False)]
)
def test_what_is_not_finite_on_any_rank_is_left_out_from_the_first_step_on(loss, norm, finite):
    judgement = Guard(CONFIG).judge(1, loss, norm, finite=finite, can_roll_back=True)
    assert (judgement.verdict, judgement.reason) == (SKIP, Reason.NON_FINITE)
    assert "step 1: loss" in judgement.line
    assert "left out, weights unchanged (1 in a row, 1 in all)" in judgement.line


def test_large_but_finite_numbers_are_no_fault_of_their_own():
    assert verdicts([1e30, 1e30], loss=1e30) == [GOOD, GOOD]


def test_a_norm_of_zero_is_good():
    assert verdicts([0.0] * 20) == [GOOD] * 20


def test_a_spike_over_the_factor_is_left_out_and_named():
    guard = Guard(CONFIG)
    assert verdicts([1.0] * 8, guard) == [GOOD] * 8
    judgement = judge(guard, 9, 10.5)
    assert (judgement.verdict, judgement.reason) == (SKIP, Reason.SPIKE)
    assert "gradient norm 10.5 is over 10 times 1, the median of the last 8" in judgement.line


def test_a_spike_under_the_factor_is_quiet():
    assert verdicts([1.0] * 20 + [9.9, 10.0] + [1.0] * 20) == [GOOD] * 42


def test_a_norm_that_grows_slowly_is_quiet_however_large_it_gets():
    assert verdicts([1.2**step for step in range(200)]) == [GOOD] * 200


def test_large_norms_of_the_warm_up_are_quiet():
    assert verdicts([1e6, 1e5, 1e4, 1e3, 100, 10, 1] + [1.0] * 50) == [GOOD] * 57


def test_nothing_is_a_spike_before_the_window_is_full():
    assert verdicts([1.0] * 7 + [1e9]) == [GOOD] * 8


def test_a_factor_of_zero_turns_spikes_off():
    guard = Guard(GuardConfig(spike_factor=0.0, spike_window=8))
    assert verdicts([1.0] * 20 + [1e9], guard) == [GOOD] * 21


def test_a_spike_does_not_enter_the_median():
    guard = Guard(CONFIG)
    verdicts([1.0] * 8, guard)
    for round_of in range(20):
        assert verdicts([50.0, 1.0], guard) == [SKIP, GOOD], round_of
    assert set(guard.state()["norms"]) == {1.0}


def test_too_many_bad_steps_in_a_row_go_back():
    guard = Guard(CONFIG)
    assert verdicts([NAN] * 3, guard) == [SKIP, SKIP, ROLLBACK]
    assert guard.skipped_steps == 3


def test_as_many_as_are_allowed_do_not_go_back():
    assert verdicts([NAN, NAN, 1.0] * 30) == [SKIP, SKIP, GOOD] * 30


def test_bad_steps_that_are_not_in_a_row_do_not_go_back():
    assert verdicts([NAN, 1.0] * 50) == [SKIP, GOOD] * 50


def test_going_back_too_often_gives_up():
    guard = Guard(CONFIG)
    assert verdicts([NAN] * 3, guard)[-1] is ROLLBACK
    guard.rolled_back({"norms": [1.0], "in_a_row": 0})
    assert verdicts([1.0, NAN, NAN, NAN], guard) == [GOOD, SKIP, SKIP, GIVE_UP]
    assert "after going back 1 times" in judge(guard, 9, NAN).line


def test_going_back_as_often_as_is_allowed_does_not_give_up():
    guard = Guard(GuardConfig(max_skips=0 + 1, max_rollbacks=5, spike_window=8))
    for _ in range(5):
        assert verdicts([NAN, NAN], guard) == [SKIP, ROLLBACK]
        guard.rolled_back({"norms": [], "in_a_row": 0})
    assert guard.rollbacks == 5


def test_many_single_skips_after_going_back_do_not_give_up():
    guard = Guard(CONFIG)
    verdicts([NAN] * 3, guard)
    guard.rolled_back({"norms": [1.0], "in_a_row": 0})
    assert verdicts([NAN, 1.0] * 20, guard) == [SKIP, GOOD] * 20


def test_without_a_checkpoint_to_go_back_to_it_gives_up():
    assert verdicts([NAN] * 3, can_roll_back=False) == [SKIP, SKIP, GIVE_UP]


@pytest.mark.parametrize("norm", [NAN, 11.0])
def test_no_skips_allowed_ends_at_the_first_bad_step(norm):
    guard = Guard(GuardConfig(max_skips=0, max_rollbacks=2, spike_factor=10.0, spike_window=8))
    assert verdicts([1.0] * 8 + [norm], guard)[-1] is GIVE_UP


def test_a_guard_restored_from_a_checkpoint_judges_as_the_one_that_went_on():
    norms = [1.0] * 6 + [NAN, 2.0, 3.0, 40.0, 1.0, NAN, NAN, 15.0, 1.0]
    straight = Guard(CONFIG)
    told = verdicts(norms, straight)
    for cut in range(len(norms)):
        first, second = Guard(CONFIG), Guard(CONFIG)
        verdicts(norms[:cut], first)
        second.restore(json.loads(json.dumps(first.state())))
        assert verdicts(norms[cut:], second) == told[cut:]


def test_skipped_steps_are_remembered_by_the_next_attempt(tmp_path):
    path = tmp_path / "skips.jsonl"
    skips = Skips(path, "data-a", leader=True)
    assert 7 not in skips
    skips.record(7, Reason.NON_FINITE, loss=NAN, grad_norm=math.inf)
    skips.record(9, Reason.SPIKE, loss=2.5, grad_norm=400.0)
    again = Skips(path, "data-a", leader=True)
    assert [step for step in range(20) if step in again] == [7, 9]
    first = json.loads(path.read_text().splitlines()[0])
    assert first == {
        "schema": 1,
        "step": 7,
        "reason": "non_finite",
        "loss": None,
        "grad_norm": None,
        "data": "data-a",
    }


def test_steps_skipped_on_other_data_are_not_skipped(tmp_path):
    Skips(tmp_path / "s", "data-a", leader=True).record(7, Reason.SPIKE, loss=1.0, grad_norm=9.0)
    assert len(Skips(tmp_path / "s", "data-b", leader=True)) == 0


def test_a_rank_that_does_not_lead_remembers_and_writes_nothing(tmp_path):
    skips = Skips(tmp_path / "s", "d", leader=False)
    skips.record(3, Reason.SPIKE, loss=1.0, grad_norm=9.0)
    assert 3 in skips
    assert not (tmp_path / "s").exists()


def test_a_line_torn_by_a_kill_costs_that_line_alone(tmp_path, capsys):
    path = tmp_path / "s"
    Skips(path, "d", leader=True).record(3, Reason.SPIKE, loss=1.0, grad_norm=9.0)
    whole = path.stat().st_size
    Skips(path, "d", leader=True).record(4, Reason.SPIKE, loss=1.0, grad_norm=9.0)
    for size in range(whole + 1, path.stat().st_size - 1):
        os.truncate(path, size)
        skips = Skips(path, "d", leader=True)
        assert (3 in skips, 4 in skips) == (True, False)
        skips.record(5, Reason.SPIKE, loss=1.0, grad_norm=9.0)
        assert (3 in Skips(path, "d", leader=False), 5 in Skips(path, "d", leader=False)) == (True, True)
        path.write_bytes(path.read_bytes()[:whole] + b'{"schema": 1, "step": 4, "data": "d", "more": "....."')
    assert "is not a skipped step" in capsys.readouterr().err
