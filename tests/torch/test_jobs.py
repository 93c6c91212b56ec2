"""Jobs of several ranks, shared out, stopped and moved: they make the steps that one process makes."""

import math
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.torch.jobs import Attempt, Shape, figures, finish, log, read
from tests.torch.killgrid import leftovers

pytestmark = pytest.mark.torch
ROUNDING = 1e-6
"""Relative: float32 gradients are summed in another order. Measured over these eight steps: at most 4e-8."""
MICRO_BATCHES = 6


def close(found, expected):
    """Whether two loss curves are equal but for rounding."""
    return found.keys() == expected.keys() and all(
        math.isclose(found[step], expected[step], rel_tol=ROUNDING) for step in expected
    )


def job(targets, drafters, *more):
    return Shape(targets=targets, drafters=drafters, micro_batches=MICRO_BATCHES, more=more)


def finished(run, shape):
    assert finish(run, shape) == 0, log(run)
    return figures(run)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process makes of the same steps."""
    return finished(tmp_path_factory.mktemp("alone"), job(0, 1))


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    """What five targets and three drafters make of them."""
    return finished(tmp_path_factory.mktemp("eight"), job(5, 3))


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A run of three drafters that ended in step 6, after the checkpoint of step 3."""
    run = tmp_path_factory.mktemp("ended")
    assert finish(run, job(0, 3), "--inject", "exit@6:1") == 3, log(run)
    return run


@pytest.mark.slow
def test_five_targets_and_three_drafters_make_the_steps_of_one_process(eight, alone):
    assert close(eight.losses, alone.losses)
    assert eight.lengths.keys() == alone.lengths.keys() == {4, 8}
    assert len(eight.weights) == len(alone.weights)


@pytest.mark.parametrize(
    "shape",
    [
        job(1, 2, "parallel.shard=replicate"),
        pytest.param(job(1, 2, "parallel.shard=full"), marks=pytest.mark.slow),
        pytest.param(job(0, 2, "parallel.shard=full"), marks=pytest.mark.slow),
    ],
    ids=["replicas", "sharded", "sharded beside the target"],
)
def test_two_drafters_make_the_steps_of_one_process(tmp_path, alone, shape):
    found = finished(tmp_path, shape)
    assert close(found.losses, alone.losses)
    assert found.lengths.keys() == alone.lengths.keys()
    assert len(found.weights) == len(alone.weights)
    assert read(tmp_path / "attempts/1/heartbeat.json")["recompiles"] == 0


@pytest.mark.slow
def test_three_drafters_resume_bit_for_bit_and_whoever_runs_the_target(tmp_path, ended, eight):
    run = Path(shutil.copytree(ended, tmp_path / "run"))
    assert finished(run, job(0, 3)) == eight
    assert read(run / "attempts/2/heartbeat.json")["resumed_from_step"] == 3


@pytest.mark.slow
def test_three_drafters_go_on_as_one(tmp_path, ended, alone):
    run = Path(shutil.copytree(ended, tmp_path / "run"))
    assert close(finished(run, job(0, 1)).losses, alone.losses)
    assert read(run / "attempts/2/heartbeat.json")["resumed_from_step"] == 3


@pytest.mark.slow
def test_one_drafter_goes_on_as_two(tmp_path, alone):
    assert finish(tmp_path, job(0, 1), "--inject", "exit@6") == 3, log(tmp_path)
    assert close(finished(tmp_path, job(0, 2)).losses, alone.losses)
    assert read(tmp_path / "attempts/2/heartbeat.json")["resumed_from_step"] == 3


@pytest.mark.slow
def test_a_stop_of_several_ranks_saves_the_last_step_and_resumes_exactly(tmp_path):
    more = ("total_steps=40", "checkpoint.every_steps=99", "eval.every_steps=0")
    shape = Shape(targets=1, drafters=2, more=more)
    expected = finished(tmp_path / "straight", shape)
    run = tmp_path / "stopped"
    attempt = Attempt(run, shape)
    try:
        assert attempt.reach("train"), log(run)
        attempt.await_steps(5)
        attempt.processes[0].send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert attempt.await_end() == 75, log(run)
        assert time.monotonic() - began < 120
    finally:
        attempt.end()
    error = read(attempt.folder / "error.json")
    assert (error["kind"], error["rank"] in (0, 1)) == ("interrupted", True)
    assert 5 <= error["step"] < 40
    assert (run / f"checkpoints/step-{error['step']}/COMPLETE").exists()
    assert leftovers(run) == []
    resumed = finished(run, shape)
    assert read(run / "attempts/2/heartbeat.json")["resumed_from_step"] == error["step"]
    assert (resumed.losses, resumed.weights) == (expected.losses, expected.weights)
