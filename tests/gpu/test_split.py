"""The whole trainer, target on one GPU and drafter on another, beside both on one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]
SETTINGS = "total_steps=12 log_every=1 eval.prompts=0 optim.micro_batches=2 loss.labels=target"


def losses(run: Path, cache: Path, *more: str) -> list[float]:
    sets = [word for key in (*SETTINGS.split(), *more) for word in ("--set", key)]
    command = [sys.executable, "-m", "trainer", "--config", "fast", "--run-dir", str(run), *sets]
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"), "TRITON_CACHE_DIR": str(cache / "triton")}
    done = subprocess.run(
        command,
        env={**os.environ, **caches, "CUDA_VISIBLE_DEVICES": "0,1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (run / "attempts/1/metrics.jsonl").read_text().splitlines()
    return [value["loss"] for value in map(json.loads, lines) if value["kind"] == "train"]


def test_a_split_of_two_gpus_trains_on_the_losses_of_one(tmp_path):
    split = losses(
        tmp_path / "split", tmp_path, "parallel.placement=split", "parallel.processes=2", "parallel.targets=1"
    )
    colocated = losses(tmp_path / "colocated", tmp_path, "parallel.processes=1")
    assert len(split) == 12
    assert split == colocated
    assert split[-1] < split[0]


def test_two_drafters_train_on_the_losses_of_one_within_rounding(tmp_path):
    two = losses(tmp_path / "two", tmp_path, "parallel.processes=2")
    one = losses(tmp_path / "one", tmp_path, "parallel.processes=1")
    assert two == pytest.approx(one, rel=2e-3)
