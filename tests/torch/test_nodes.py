"""The whole trainer under two torchrun agents on loopback: a node boundary makes no difference."""

import os
import signal
import time

import pytest

from tests.torch.jobs import Attempt, Shape, figures, finish, log, read

pytestmark = pytest.mark.torch
NODES = 2
SPLIT = Shape(targets=2, drafters=2)
PAIR = Shape(targets=1, drafters=1)


@pytest.mark.slow
def test_losses_are_those_of_one_node(tmp_path):
    assert finish(tmp_path / "one", SPLIT) == 0, log(tmp_path / "one")
    run = tmp_path / "two"
    told = {
        "DFLASHCTL_RUN_DIR": str(run),
        "DFLASHCTL_ATTEMPT": "1",
        "DFLASHCTL_ATTEMPT_DIR": str(run / "attempts/1"),
        "DFLASHCTL_CHECKPOINT_DIR": str(run / "checkpoints"),
    }
    attempt = Attempt(run, SPLIT, nodes=NODES, **told)
    try:
        assert attempt.await_end() == 0, log(run)
    finally:
        attempt.end()
    assert figures(run) == figures(tmp_path / "one")
    assert read(run / "attempts/1/heartbeat.json")["phase"] == "done"


@pytest.mark.slow
def test_a_death_on_one_node_ends_both_and_by_hand_the_next_launch_resumes(tmp_path):
    assert finish(tmp_path / "one", PAIR) == 0, log(tmp_path / "one")
    run = tmp_path / "two"
    attempt = Attempt(run, PAIR, nodes=NODES)
    try:
        assert attempt.reach("train"), log(run)
        attempt.await_steps(5)
        os.kill(attempt.pids[1], signal.SIGKILL)
        began = time.monotonic()
        assert attempt.await_end() != 0
        assert time.monotonic() - began < 120
    finally:
        attempt.end()
    assert read(attempt.folder / "error.json")["rank"] == 1
    again = Attempt(run, PAIR, nodes=NODES)
    try:
        assert again.await_end() == 0, log(run)
    finally:
        again.end()
    assert sorted(path.name for path in (run / "attempts").iterdir()) == ["1", "2"]
    assert read(run / "attempts/2/heartbeat.json")["resumed_from_step"] == 3
    assert figures(run) == figures(tmp_path / "one")
