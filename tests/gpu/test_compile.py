"""Start-up on a GPU: threads that race deadlock, ours does not, and what one process compiled the rest load.

Each process is a child under a deadline; `pytest -s` shows the seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.compiling.caches import point_caches

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROOT = Path(__file__).parents[2]
RANKS, THREADS = 4, 3
DEADLINE_S = 90
RACE_DEADLINE_S = 60


def gpus() -> list[str]:
    """As CUDA_VISIBLE_DEVICES names those of this process."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(index) for index in range(torch.cuda.device_count())]


class Child:
    """A process of `tests.gpu.compile_child` that sees one GPU."""

    def __init__(self, mode: str, run_dir: Path, *, gpu: str, deadline_s: int = DEADLINE_S, **more: object):
        environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("TORCHINDUCTOR_", "TRITON_"))
        }
        self.host = str(more.pop("host", "here"))
        point_caches(run_dir, environ, host=self.host)
        arguments = {"deadline_s": deadline_s, **more}
        if mode == "start-up":
            arguments |= {"run_dir": str(run_dir), "host": self.host}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.compile_child", mode, json.dumps(arguments)],
            cwd=ROOT,
            env={**environ, "CUDA_VISIBLE_DEVICES": gpu},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.deadline_s = deadline_s

    def end(self) -> tuple[int, list[str], str]:
        """Exit code, lines and errors; the child ends itself at its deadline, with its threads' stacks."""
        try:
            out, err = self.process.communicate(timeout=self.deadline_s + 30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
        return self.process.returncode, out.splitlines(), err

    def result(self) -> tuple[dict[str, Any], list[str]]:
        """What a child that ended well found, and what it said before."""
        code, lines, err = self.end()
        assert code == 0, err
        return json.loads(lines[-1]), lines[:-1]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A run directory, and what four ranks found that started in it at the same time, cold."""
    run_dir = tmp_path_factory.mktemp("run")
    every = gpus()
    ranks = [Child("start-up", run_dir, gpu=every[rank % len(every)]) for rank in range(RANKS)]
    return run_dir, [rank.result()[0] for rank in ranks]


def test_ranks_that_start_together_all_train_and_only_the_first_compiles(started):
    _, found = started
    found = sorted(found, key=lambda one: one["begun"])
    for one in found:
        print(f"{one['seconds']:.1f} s, {one['hits']} hits, {one['misses']} misses", end="; ")
    assert found[0]["misses"] > 0
    for one in found[1:]:
        assert (one["hits"] > 0, one["misses"]) == (True, 0)
        assert one["seconds"] < found[0]["seconds"]
    # Once the first has filled the cache, the others need not wait for each other.
    assert all(found[0]["ended"] <= later["begun"] + 0.2 for later in found[1:])
    assert max(later["begun"] for later in found[1:]) < min(later["ended"] for later in found[1:])


def test_twenty_steps_of_other_documents_and_an_evaluation_compile_nothing(started):
    _, found = started
    assert [one["recompiles"] for one in found] == [0] * RANKS


def test_a_rank_on_the_next_gpu_as_its_own_first_one_has_hits_alone(started):
    run_dir, _ = started
    found, lines = Child("start-up", run_dir, gpu=gpus()[-1]).result()
    print(f"GPU {gpus()[-1]}: {found['seconds']:.1f} s, {found['hits']} hits; {lines[0]}", end="; ")
    assert (found["hits"] > 0, found["misses"]) == (True, 0)


def test_saved_artifacts_stand_in_for_a_cache_that_was_cleaned_up(started):
    run_dir, earlier = started
    found, lines = Child("start-up", run_dir, gpu=gpus()[0], host="elsewhere").result()
    cold = max(one["seconds"] for one in earlier)
    print(f"cold {cold:.1f} s, from artifacts {found['seconds']:.1f} s", end="; ")
    assert lines[0].startswith("compile cache: loaded ")
    assert (found["hits"] > 0, found["misses"]) == (True, 0)
    assert found["seconds"] < cold


def test_threads_in_the_gate_all_finish_their_first_steps(tmp_path):
    found, _ = Child("serialised", tmp_path, gpu=gpus()[0], threads=THREADS).result()
    print(f"{THREADS} threads serialised: {found['seconds']:.1f} s", end="; ")
    assert found["seconds"] < RACE_DEADLINE_S
    assert (found["finished"], found["errors"]) == (THREADS, [])


def test_threads_without_the_gate_deadlock_or_fail(tmp_path):
    child = Child("race", tmp_path, gpu=gpus()[0], threads=THREADS, deadline_s=RACE_DEADLINE_S)
    code, lines, err = child.end()
    if code == 0:
        errors = json.loads(lines[-1])["errors"]
        print(f"errors: {errors}", end="; ")
        assert errors
    elif code < 0:
        print(f"ended by signal {-code}", end="; ")
    else:
        # The stacks at the deadline, at which the same steps in the gate have long been done.
        print(f"deadlock: {len(lines)} of {2 * THREADS} steps done in {RACE_DEADLINE_S} s", end="; ")
        assert "Timeout (" in err, err
        assert "_dynamo/convert_frame.py" in err
        assert len(lines) < 2 * THREADS
