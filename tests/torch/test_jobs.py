"""Jobs of several ranks, shared out, stopped and moved: they make the steps that one process makes."""

import math
import signal
import time

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


@pytest.mark.parametrize(
    "shape",
    [
        job(5, 3),
        job(1, 2, "parallel.shard=replicate"),
        job(1, 2, "parallel.shard=full"),
        job(0, 2, "parallel.shard=full"),
    ],
    ids=["5 targets and 3 drafters", "replicas", "sharded", "sharded beside the target"],
)
def test_losses_are_those_of_one_process(tmp_path, alone, shape):
    found = finished(tmp_path, shape)
    assert close(found.losses, alone.losses)
    assert found.lengths.keys() == alone.lengths.keys() == {4, 8}
    assert len(found.weights) == len(alone.weights)
    assert read(tmp_path / "attempts/1/heartbeat.json")["recompiles"] == 0


@pytest.mark.parametrize(("first", "then"), [(3, 1), (1, 2)])
def test_a_run_goes_on_with_another_number_of_drafters(tmp_path, alone, first, then):
    assert finish(tmp_path, job(0, first), "--inject", "exit@6") == 3, log(tmp_path)
    moved = finished(tmp_path, job(0, then))
    assert read(tmp_path / "attempts/2/heartbeat.json")["resumed_from_step"] == 3
    assert close(moved.losses, alone.losses)


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
        assert time.monotonic() - began < 30
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
