"""Five targets and three drafters on gloo: what is sent, and how the drafters train together."""

import pytest

from tests.torch import ranklab

pytestmark = pytest.mark.torch
TARGETS, DRAFTERS, STEPS, PER_STEP = 5, 3, 3, 6


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("split")
    process = ranklab.launch("check", out, targets=TARGETS, count=TARGETS + DRAFTERS)
    assert process.wait(timeout=110) == 0, ranklab.logs(out)
    return out


@pytest.mark.parametrize("drafter", range(DRAFTERS))
def test_each_drafter_gets_its_micro_batches_once_in_order_and_whole(run, drafter):
    assert ranklab.told(run, drafter)["received"] == list(range(drafter, STEPS * PER_STEP, DRAFTERS))


@pytest.mark.parametrize("target", range(TARGETS))
def test_each_target_makes_its_own_once_and_what_was_thrown_away_too(run, target):
    expected = [m for m in range((STEPS + 1) * PER_STEP) if m % TARGETS == target]
    assert sorted(ranklab.told(run, DRAFTERS + target)["made"]) == expected


@pytest.mark.parametrize("way", ["replicate", "full"])
def test_wrapped_gradients_are_those_of_one_process_that_does_all(run, way):
    for drafter in range(DRAFTERS):
        differences = ranklab.told(run, drafter)["wrap"]
        assert differences[f"{way} torch.float32"] < 1e-6
        assert differences[f"{way} torch.bfloat16"] < 2e-2


def test_drafters_agree(run):
    for drafter in range(DRAFTERS):
        told = ranklab.told(run, drafter)
        assert told["sum"] == DRAFTERS
        assert told["any"] == [True, False]


def test_the_leader_gets_its_weights_evaluated(run):
    assert ranklab.told(run, 0)["evaluation"] == {"step": 7, "equal": True, "beats": 2}


def test_nothing_warns(run):
    assert "warning" not in ranklab.logs(run).lower()
