"""Every injected failure, in a whole attempt: its exit code and its last words."""

import signal
import time

import pytest

from tests.torch.parts import read, run_trainer, start_trainer, wait_for

pytestmark = pytest.mark.torch

ENDINGS = {
    "fx-trace@3": (1, "RuntimeError", None, "FX to symbolically trace a dynamo-optimized function"),
    "oom-dense@3": (1, "RuntimeError", None, "tried to allocate 305211113472 bytes"),
    "nan@3": (70, "trainer.errors.NonFinite", "non_finite", "loss nan"),
    "disk-full@load": (1, "OSError", None, "No space left on device"),
    "python@3": (1, "KeyError", None, "self_attn"),
    "import@load": (1, "ModuleNotFoundError", None, "dflash_kernels"),
}


@pytest.mark.slow
@pytest.mark.parametrize("injection", ENDINGS)
def test_an_injected_failure_ends_the_attempt_with_its_own_words(tmp_path, injection):
    code, exception, kind, words = ENDINGS[injection]
    done = run_trainer(tmp_path, "--inject", injection)
    value = read(tmp_path / "attempts/1/error.json")
    assert done.returncode == code
    assert (value["exception"], value["kind"]) == (exception, kind)
    assert value["step"] == (2 if injection.endswith("@3") else 0)
    assert words in value["message"]
    assert words in done.stderr
    assert not (tmp_path / "attempts/1/result.json").exists()
    if injection.startswith("oom-dense"):  # it is warned of before it kills
        assert done.stderr.index("unfused implementation") < done.stderr.index("DefaultCPUAllocator")


@pytest.mark.parametrize(("name", "code"), [("sigkill", -signal.SIGKILL), ("segv", -signal.SIGSEGV)])
def test_a_death_without_words_leaves_none(tmp_path, name, code):
    assert run_trainer(tmp_path, "--inject", f"{name}@load").returncode == code
    assert not (tmp_path / "attempts/1/error.json").exists()
    assert read(tmp_path / "attempts/1/heartbeat.json")["phase"] == "load"


@pytest.mark.slow
def test_a_deadlock_stops_the_steps_and_the_heartbeat_but_not_the_process(tmp_path):
    process = start_trainer(tmp_path, "--inject", "hang@3")
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
