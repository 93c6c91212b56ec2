"""Whole attempts as a supervisor starts them: what they leave on disk, and how they end."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.torch.parts import environment, run_trainer, trainer_command

pytestmark = pytest.mark.torch


def read(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def losses(run: Path) -> dict[int, float]:
    """Loss of each step, by whichever attempt computed it last."""
    found: dict[int, float] = {}
    for attempt in sorted((run / "attempts").iterdir()):
        for line in (attempt / "metrics.jsonl").read_text().splitlines():
            value = json.loads(line)
            if value["kind"] == "train":
                found[value["step"]] = value["loss"]
    return found


def wait_for(path: Path, wanted: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not (path.exists() and wanted in path.read_text()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    run = tmp_path_factory.mktemp("straight")
    done = run_trainer(run, "--set", "total_steps=20", "--set", "eval.prompts=1",
                       "--set", "eval.prompt_tokens=32", "--set", "eval.new_tokens=16")  # fmt: skip
    assert done.returncode == 0, done.stderr
    return run


def test_a_finished_attempt_leaves_what_the_contract_says(straight):
    attempt = straight / "attempts/1"
    heartbeat, result = read(attempt / "heartbeat.json"), read(attempt / "result.json")
    assert (heartbeat["phase"], heartbeat["step"], heartbeat["total_steps"]) == ("done", 20, 20)
    assert (heartbeat["recompiles"], heartbeat["checkpoint_step"]) == (0, 20)
    assert heartbeat["resumed_from_step"] is None
    assert (result["step"], result["export"]) == (20, str(straight / "export"))
    assert result["acceptance_length"] == result["acceptance"]["teacher_forced"]["drafter"]
    assert set(result["acceptance"]["decoded"]) >= {"drafter", "untrained", "lookup", "distinct_16grams"}
    assert not (attempt / "error.json").exists()
    told = read(attempt / "environment.json")
    assert told["config"]["total_steps"] == 20
    assert "PATH" in told["env_names"]
    assert list(losses(straight)) == list(range(1, 21))


def test_the_export_has_the_published_names_and_both_spellings_of_the_rotary_base(straight):
    config = read(straight / "export/config.json")
    tensors = load_file(straight / "export/model.safetensors")
    assert config["architectures"] == ["DFlashDraftModel"]
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]
    assert config["dflash_config"] == {"mask_token_id": 256, "target_layer_ids": [1, 3, 5]}
    assert len(tensors) == 3 + 11 * config["num_hidden_layers"]
    assert tuple(tensors["fc.weight"].shape) == (256, 3 * 256)


def test_a_resumed_run_is_bit_for_bit_the_straight_one(straight, tmp_path):
    first = run_trainer(tmp_path, "--set", "total_steps=20", "--inject", "exit@13")
    assert first.returncode == 3
    second = run_trainer(tmp_path, "--set", "total_steps=20")
    assert second.returncode == 0
    assert "resumed from step 10\n" in second.stdout
    assert read(tmp_path / "attempts/2/heartbeat.json")["resumed_from_step"] == 10
    assert losses(tmp_path) == losses(straight)
    weights = [run / "export/model.safetensors" for run in (straight, tmp_path)]  # float32
    assert weights[0].read_bytes() == weights[1].read_bytes()


ENDINGS = {
    "fx-trace": (1, "RuntimeError", None, "FX to symbolically trace a dynamo-optimized function"),
    "oom-dense": (1, "RuntimeError", None, "tried to allocate 305211113472 bytes"),
    "nan": (70, "trainer.errors.NonFinite", "non_finite", "loss nan"),
    "disk-full": (1, "OSError", None, "No space left on device"),
    "python": (1, "KeyError", None, "self_attn"),
    "import": (1, "ModuleNotFoundError", None, "dflash_kernels"),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_an_injected_failure_ends_the_attempt_with_its_own_words(tmp_path, name):
    code, exception, kind, words = ENDINGS[name]
    done = run_trainer(tmp_path, "--inject", f"{name}@3")
    value = read(tmp_path / "attempts/1/error.json")
    assert done.returncode == code
    assert (value["exception"], value["kind"], value["step"]) == (exception, kind, 2)
    assert words in value["message"]
    assert words in done.stderr
    assert not (tmp_path / "attempts/1/result.json").exists()


def test_dense_attention_is_warned_of_before_it_kills(tmp_path):
    done = run_trainer(tmp_path, "--inject", "oom-dense@3")
    assert done.stderr.index("unfused implementation") < done.stderr.index("DefaultCPUAllocator")


@pytest.mark.parametrize(
    ("name", "code"), [("sigkill", -signal.SIGKILL), ("segv", -signal.SIGSEGV), ("exit", 3)]
)
def test_a_death_without_words_leaves_none(tmp_path, name, code):
    assert run_trainer(tmp_path, "--inject", f"{name}@3").returncode == code
    assert not (tmp_path / "attempts/1/error.json").exists()
    assert read(tmp_path / "attempts/1/heartbeat.json")["phase"] == "train"


def test_an_injection_spares_the_second_attempt(tmp_path):
    variables = {"DFLASHCTL_RUN_DIR": str(tmp_path), "DFLASHCTL_ATTEMPT": "2"}
    done = run_trainer(tmp_path / "x", "--set", "total_steps=3", "--inject", "exit@2", **variables)
    assert done.returncode == 0
    assert read(tmp_path / "attempts/2/heartbeat.json")["phase"] == "done"


def test_a_deadlock_stops_the_steps_and_the_heartbeat_but_not_the_process(tmp_path):
    process = subprocess.Popen(
        trainer_command(tmp_path, "--inject", "hang@3"),
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    heartbeat = tmp_path / "attempts/1/heartbeat.json"
    try:
        wait_for(tmp_path / "attempts/1/metrics.jsonl", '"step": 2', process)
        time.sleep(2)
        before = heartbeat.read_text()
        time.sleep(2)
        assert heartbeat.read_text() == before
        assert process.poll() is None
        process.send_signal(signal.SIGUSR2)
        time.sleep(0.5)
    finally:
        process.kill()
    stderr = process.communicate()[1]
    assert "in _hang" in stderr


def test_sigterm_is_answered_with_a_checkpoint_of_the_last_step(tmp_path):
    process = subprocess.Popen(
        trainer_command(tmp_path, "--set", "total_steps=100000", "--set", "checkpoint.every_steps=99999"),
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_for(tmp_path / "attempts/1/metrics.jsonl", '"step": 3', process)
    process.terminate()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75
    value = read(tmp_path / "attempts/1/error.json")
    assert value["kind"] == "interrupted"
    assert (tmp_path / f"checkpoints/step-{value['step']}/COMPLETE").exists()
    assert stderr.startswith("trainer: Interrupted: stopped as asked")


def test_a_wrong_configuration_is_one_line_at_once_and_in_the_last_words(tmp_path):
    started = time.monotonic()
    done = run_trainer(tmp_path, "--set", "optim.lr=fast")
    assert time.monotonic() - started < 5
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
