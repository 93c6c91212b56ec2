"""Whole attempts in which steps go bad, and the guard has leave to go on."""

import json
import shutil

import pytest

from tests.torch.parts import read, run_trainer

pytestmark = pytest.mark.torch
SETTINGS = (
    "--set", "total_steps=8", "--set", "checkpoint.every_steps=2", "--set", "guard.max_skips=1"
)  # fmt: skip


def losses(run):
    lines = (run / "attempts/1/metrics.jsonl").read_text().splitlines()
    return {value["step"]: value["loss"] for value in map(json.loads, lines) if value["kind"] == "train"}


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory):
    run = tmp_path_factory.mktemp("poisoned")
    return run, run_trainer(run, *SETTINGS, "--inject", "nan@5")


def test_bad_steps_are_left_out_and_then_training_goes_back_to_a_checkpoint(poisoned):
    run, done = poisoned
    assert done.returncode == 0, done.stderr
    assert "step 5: loss nan" in done.stderr
    assert "left out, weights unchanged (1 in a row, 1 in all)" in done.stderr
    assert "went back from step 5 to the checkpoint of step 4" in done.stdout
    assert sorted(losses(run)) == [1, 2, 3, 4, 7, 8]
    heartbeat = read(run / "attempts/1/heartbeat.json")
    assert (heartbeat["skipped_steps"], heartbeat["rollbacks"], heartbeat["step"]) == (2, 1, 8)
    skipped = [json.loads(line) for line in (run / "skips.jsonl").read_text().splitlines()]
    assert [(value["step"], value["reason"], value["loss"]) for value in skipped] == [
        (5, "non_finite", None),
        (6, "non_finite", None),
    ]


@pytest.mark.slow
def test_the_rest_is_what_it_is_where_those_steps_were_never_taken(poisoned, tmp_path):
    run, _ = poisoned
    shutil.copy(run / "skips.jsonl", tmp_path)
    done = run_trainer(tmp_path, *SETTINGS)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert losses(tmp_path) == losses(run)
    weights = [(each / "export/model.safetensors").read_bytes() for each in (run, tmp_path)]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_a_bad_last_step_is_gone_back_from_too(tmp_path):
    done = run_trainer(tmp_path, *SETTINGS, "--inject", "nan@8")
    assert done.returncode == 0, done.stderr
    assert "to the checkpoint of step 6" in done.stdout
    assert sorted(losses(tmp_path)) == list(range(1, 8))
    assert (tmp_path / "checkpoints/step-8/COMPLETE").exists()
