"""One rank is killed, or told to stop, while all of them train."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import LONG_S
from tests.torch import ranklab
from trainer.parallel.death import RANK_DIED

pytestmark = pytest.mark.torch
ROLES = {0: "drafter", 1: "drafter", 2: "target"}  # the leader, another drafter, the target


def training(out):
    process = ranklab.launch("loop", out, targets=1, count=3)
    ranklab.await_ranks(out, "looping", ROLES, [process])
    return process


@pytest.mark.parametrize("killed", ROLES)
def test_a_killed_rank_ends_the_job_and_is_the_first_failure(tmp_path, killed):
    process = training(tmp_path)
    os.kill(ranklab.pids(tmp_path)[killed], signal.SIGKILL)
    ranklab.await_end(tmp_path)
    assert process.wait(timeout=LONG_S) == 128 + signal.SIGKILL
    error = ranklab.error(tmp_path)
    assert (error["rank"], error["exception"]) == (killed, RANK_DIED)
    assert f"rank {killed} ({ROLES[killed]}) failed first" in error["message"]
    assert "SIGKILL" in error["message"]
    log = ranklab.logs(tmp_path)
    assert f"rank {killed} ({ROLES[killed]}) failed first" in log
    assert "Traceback" not in log  # the others' broken connections would hide the cause


def test_a_stop_asked_of_one_target_alone_ends_all_gracefully(tmp_path):
    process = training(tmp_path)
    os.kill(ranklab.pids(tmp_path)[2], signal.SIGTERM)
    assert process.wait(timeout=LONG_S) == 75, ranklab.logs(tmp_path)
    assert not (tmp_path / "error.json").exists()
    assert all((tmp_path / f"told-{rank}.json").exists() for rank in ROLES)


def test_a_launcher_that_is_killed_takes_its_ranks_with_it(tmp_path):
    process = training(tmp_path)
    process.kill()
    process.wait(timeout=LONG_S)
    ranklab.await_end(tmp_path)


def test_a_rank_that_fails_by_itself_has_the_word_and_ends_those_stuck_in_a_receive(tmp_path):
    process = ranklab.launch("fail", tmp_path, targets=1, count=3)
    ranklab.await_ranks(tmp_path, "looping", ROLES, [process])
    pids = ranklab.pids(tmp_path)
    while not all(ranklab.is_gone(pids[drafter]) for drafter in (0, 1)):
        assert not ranklab.is_gone(pids[2]), ranklab.logs(tmp_path)  # it lingers until it is let go
    (tmp_path / "let-go").touch()
    assert process.wait(timeout=LONG_S) == 1
    error = ranklab.error(tmp_path)
    assert error["rank"] == 2
    assert "is too much" in error["message"]
    log = ranklab.logs(tmp_path)
    assert "[rank2]: OverflowError: micro-batch" in log
    assert "[rank0]: rank 2 (target) failed first: OverflowError: micro-batch" in log
    assert log.count("Traceback") == 1


STUCK_SHUTDOWN = """
import atexit, ctypes, sys
from trainer.parallel import failfast
from trainer.parallel.topology import Topology
failfast.EXIT_S = 1.0
watch = failfast.FailFast(Topology(world_size=2, local_world_size=2, num_targets=2, num_drafters=2))
watch.start()
atexit.register(ctypes.PyDLL(None).sleep, 600)  # keeps the interpreter's lock, as a backend's end may
assert watch.announce("broken", code=3, communication=False)
print("announced", flush=True)
"""


def test_a_rank_whose_interpreter_hangs_in_its_end_is_ended_by_the_kernel(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", STUCK_SHUTDOWN],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TRAINER_STORE": str(tmp_path / "store")},
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    assert done.stdout == "announced\n", done.stderr
    assert done.returncode == -signal.SIGALRM
