"""Whole attempts as a supervisor starts them: what they leave on disk, and how they end."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.cli import LONG_S
from tests.torch.parts import read, run_trainer, start_trainer, wait_for

pytestmark = pytest.mark.torch
STEPS = 11
SHORT = ("--set", f"total_steps={STEPS}")


def losses(run: Path) -> dict[int, float]:
    """Loss of each step, by whichever attempt computed it last."""
    found: dict[int, float] = {}
    for attempt in sorted((run / "attempts").iterdir()):
        for line in (attempt / "metrics.jsonl").read_text().splitlines():
            value = json.loads(line)
            if value["kind"] == "train":
                found[value["step"]] = value["loss"]
    return found


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    run = tmp_path_factory.mktemp("straight")
    done = run_trainer(run, *SHORT, "--set", "eval.prompts=1",
                       "--set", "eval.prompt_tokens=32", "--set", "eval.new_tokens=16")  # fmt: skip
    assert done.returncode == 0, done.stderr
    return run


def test_a_finished_attempt_leaves_what_the_contract_says(straight):
    attempt = straight / "attempts/1"
    heartbeat, result = read(attempt / "heartbeat.json"), read(attempt / "result.json")
    assert (heartbeat["phase"], heartbeat["step"], heartbeat["total_steps"]) == ("done", STEPS, STEPS)
    assert (heartbeat["recompiles"], heartbeat["checkpoint_step"]) == (0, STEPS)
    assert heartbeat["resumed_from_step"] is None
    assert (result["step"], result["export"]) == (STEPS, str(straight / "export"))
    assert result["acceptance_length"] == result["acceptance"]["teacher_forced"]["drafter"]
    assert set(result["acceptance"]["decoded"]) >= {"drafter", "untrained", "lookup", "distinct_16grams"}
    assert not (attempt / "error.json").exists()
    told = read(attempt / "environment.json")
    assert told["config"]["total_steps"] == STEPS
    assert "PATH" in told["env_names"]
    assert list(losses(straight)) == list(range(1, STEPS + 1))


def test_the_export_has_the_published_names_and_both_spellings_of_the_rotary_base(straight):
    config = read(straight / "export/config.json")
    tensors = load_file(straight / "export/model.safetensors")
    assert config["architectures"] == ["DFlashDraftModel"]
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]
    assert config["dflash_config"] == {"mask_token_id": 256, "target_layer_ids": [1, 3, 5]}
    assert len(tensors) == 3 + 11 * config["num_hidden_layers"]
    assert tuple(tensors["fc.weight"].shape) == (256, 3 * 256)


def test_a_resumed_run_is_bit_for_bit_the_straight_one(straight, tmp_path):
    first = run_trainer(tmp_path, *SHORT, "--inject", "exit@8")
    assert first.returncode == 3
    assert not (tmp_path / "attempts/1/error.json").exists()  # it ended without a word
    # An injection spares the second attempt, as long as no `!` is said.
    variables = {"DFLASHCTL_RUN_DIR": str(tmp_path), "DFLASHCTL_ATTEMPT": "2"}
    second = run_trainer(tmp_path / "x", *SHORT, "--inject", "exit@8", **variables)
    assert second.returncode == 0, second.stderr
    assert "resumed from step 5\n" in second.stdout
    assert read(tmp_path / "attempts/2/heartbeat.json")["resumed_from_step"] == 5
    assert losses(tmp_path) == losses(straight)
    weights = [run / "export/model.safetensors" for run in (straight, tmp_path)]  # float32
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_sigterm_is_answered_with_a_checkpoint_of_the_last_step(tmp_path):
    process = start_trainer(tmp_path, "--set", "total_steps=100000", "--set", "checkpoint.every_steps=99999")
    wait_for(tmp_path / "attempts/1/metrics.jsonl", '"step": 3', process)
    process.terminate()
    _, stderr = process.communicate(timeout=LONG_S)
    assert process.returncode == 75
    value = read(tmp_path / "attempts/1/error.json")
    assert value["kind"] == "interrupted"
    assert (tmp_path / f"checkpoints/step-{value['step']}/COMPLETE").exists()
    assert stderr.startswith("trainer: Interrupted: stopped as asked")


def test_a_wrong_configuration_is_one_line_and_in_the_last_words(tmp_path):
    done = run_trainer(tmp_path, "--set", "optim.lr=fast")
    assert done.returncode == 78
    assert done.stderr.startswith("trainer: ConfigInvalid: fast.toml: optim.lr: 'fast' is not a number")
    assert done.stderr.count("\n") == 1
    assert read(tmp_path / "attempts/1/error.json")["kind"] == "config_invalid"


def test_dense_attention_over_the_limit_is_refused_before_a_step(tmp_path):
    done = run_trainer(tmp_path, "--set", "compute.dense_limit_bytes=65536")
    assert done.returncode == 1
    assert read(tmp_path / "attempts/1/error.json")["kind"] == "dense_attention_refused"
    assert "over compute.dense_limit_bytes, 65,536" in done.stderr


def test_without_a_gpu_cuda_is_refused_and_never_silently_replaced(tmp_path):
    done = run_trainer(tmp_path, "--set", "compute.device=cuda")
    assert done.returncode == 78
    assert "compute.device: cuda, but torch" in done.stderr


def test_check_config_says_valid_and_touches_nothing(tmp_path):
    done = run_trainer(tmp_path / "never", "--check-config", "--inject", "nan@3")
    assert (done.returncode, done.stdout) == (0, "fast: valid\n")
    assert not (tmp_path / "never").exists()
    assert run_trainer(tmp_path / "never", "--check-config", "--inject", "nan").returncode == 78
    buckets = ("--check-config", "--set", "data.short_buckets=[33]")
    assert run_trainer(tmp_path / "never", *buckets).returncode == 78
