"""A watch over the bundled trainer on a real GPU: what it sees there, and what it waits for."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.cli import is_kind  # noqa: E402 - only where there is torch
from tests.gpu.failing import GIB, HOLDER  # noqa: E402
from tests.integration.local import local_runs  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux"),
]
PLAYBOOK = """\
extends: default
backoff: [0s]
jitter: 0
grace: 2s
limits: {train: 8s, train_steps: 5}
rules:
  oom_dense_fallback: {act: relaunch, attempts: 1, why: The failure was asked for once.}
"""
SETTINGS = {"checkpoint.every_steps": 10, "eval.every_steps": 0, "eval.prompts": 1, "log_every": 5}
LIMIT_S = 240.0


@pytest.fixture
def local(tmp_path):
    with local_runs(tmp_path) as runs:
        runs.playbook.write_text(PLAYBOOK)
        yield runs


def begin(local, run, *words, steps=60):
    settings = [f"{key}={value}" for key, value in {**SETTINGS, "total_steps": steps}.items()]
    changes = [word for setting in settings for word in ("--set", setting)]
    local.launch(
        "--run", run, "--python", sys.executable, "--config", "tiny", *changes, *words,
        "--playbook", str(local.playbook),
    )  # fmt: skip
    return local.watch(run)


def kill_trainer(local, run):
    """SIGKILL to what holds the run's directory in its environment and is Python on the trainer."""
    mark = f"DFLASHCTL_RUN_DIR={local.state}/runs/{run}\0".encode()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
            is_trainer = b"trainer" in words and mark in (place / "environ").read_bytes() + b"\0"
        except OSError:  # it ended meanwhile
            continue
        if is_trainer:
            os.kill(int(place.name), signal.SIGKILL)


def hold(size):
    """Take memory of the GPU as a stranger would."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDER.format(size=size)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    return holder


def test_a_dense_fallback_on_a_gpu_is_named_and_comes_back(local):
    watch = begin(local, "dense", "--inject", "oom-dense@25")
    dead = watch.wait_for(is_kind("diagnosis", state="dead"), LIMIT_S)
    assert dead["detail"]["failure"] == "oom_dense_fallback"
    assert watch.end(LIMIT_S) == 0, watch.story()


def test_a_frozen_step_on_a_gpu_is_a_hang_with_every_reading_and_stacks(local):
    watch = begin(local, "frozen", "--inject", "hang@25")
    hung = watch.wait_for(is_kind("diagnosis", state="hung"), LIMIT_S)
    sources = {shown["source"] for shown in hung["detail"]["evidence"]}
    assert {"heartbeat", "gpu"} <= sources, hung
    assert watch.end(LIMIT_S) == 0, watch.story()
    kept = local.run("stacks", "frozen", "--kept", "--attempt", "1").stdout
    assert "hang" in kept, kept


def test_a_relaunch_waits_for_a_stranger_on_the_gpu_and_names_it(local):
    watch = begin(local, "held", steps=100_000)
    watch.wait_for(is_kind("metrics"), LIMIT_S)
    holder = hold(4 * GIB)
    try:
        kill_trainer(local, "held")
        watch.wait_for(lambda event: event["kind"] == "gate" and str(holder.pid) in event["text"], LIMIT_S)
        assert local.attempts("held") == [1]
    finally:
        holder.kill()
        holder.communicate()
    watch.wait_for(lambda event: event["kind"] == "metrics" and event["attempt"] == 2, LIMIT_S)
    local.run("stop", "held", "--grace", "10s")
