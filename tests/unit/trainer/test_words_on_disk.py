import json
import re
from pathlib import Path
from typing import Any

import pytest

from trainer.errors import ConfigInvalid, NonFinite
from trainer.files import append_json_line, write_durably, write_json
from trainer.heartbeat import Heartbeat, Phase
from trainer.lastwords import LastWords
from trainer.metrics import StepReading, record_eval, record_step, step_line

INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def read(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())
    return value


@pytest.fixture
def heartbeat(tmp_path: Path) -> Heartbeat:
    return Heartbeat(tmp_path / "heartbeat.json")


def test_a_heartbeat_has_every_key_of_the_contract(heartbeat, tmp_path):
    heartbeat.enter(Phase.COMPILE)
    value = read(tmp_path / "heartbeat.json")
    assert set(value) == {
        *("schema", "phase", "step", "total_steps", "loss", "tokens_per_s", "step_s", "recompiles"),
        *("skipped_steps", "rollbacks"),
        *("peak_memory_bytes", "resumed_from_step", "checkpoint_step", "pid", "at"),
    }
    assert (value["schema"], value["phase"], value["step"]) == (1, "compile", 0)
    assert INSTANT.fullmatch(value["at"])


def test_a_phase_change_is_written_at_once_and_beats_in_between_are_thinned(heartbeat, tmp_path):
    heartbeat.enter(Phase.TRAIN)
    heartbeat.step = 5
    heartbeat.beat()
    assert read(tmp_path / "heartbeat.json")["step"] == 0
    heartbeat.enter(Phase.EVAL)
    assert read(tmp_path / "heartbeat.json")["step"] == 5


def test_a_beat_is_written_when_the_last_one_is_old(heartbeat, tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.heartbeat.BEAT_INTERVAL_S", 0.0)
    heartbeat.step = 5
    heartbeat.beat()
    assert read(tmp_path / "heartbeat.json")["step"] == 5


def test_json_is_replaced_whole_and_leaves_no_temporary_file(tmp_path):
    write_json(tmp_path / "a.json", {"x": 1})
    write_json(tmp_path / "a.json", {"x": 2})
    assert read(tmp_path / "a.json") == {"schema": 1, "x": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_number_that_is_not_finite_never_reaches_a_file(tmp_path):
    with pytest.raises(ValueError, match="Out of range float"):
        append_json_line(tmp_path / "m", {"loss": float("nan")})
    assert not (tmp_path / "m").exists()


def test_a_full_device_says_enospc(tmp_path):
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        write_durably(tmp_path / "full", b"x")


def end_with(error: BaseException, heartbeat: Heartbeat, path: Path) -> None:
    with pytest.raises(type(error)), LastWords(path, heartbeat):
        raise error


def test_last_words_tell_class_message_traceback_and_where(heartbeat, tmp_path):
    heartbeat.enter(Phase.TRAIN)
    heartbeat.step = 7
    end_with(RuntimeError("boom"), heartbeat, tmp_path / "error.json")
    value = read(tmp_path / "error.json")
    assert (value["exception"], value["message"], value["kind"]) == ("RuntimeError", "boom", None)
    assert (value["phase"], value["step"], value["rank"], value["schema"]) == ("train", 7, 0, 1)
    assert "raise error\nRuntimeError: boom" in value["traceback"]


def test_a_failure_leaves_a_heartbeat_of_its_own_step(heartbeat, tmp_path):
    heartbeat.enter(Phase.TRAIN)
    heartbeat.step = 7
    heartbeat.beat()  # thinned
    assert read(tmp_path / "heartbeat.json")["step"] == 0
    end_with(RuntimeError("boom"), heartbeat, tmp_path / "error.json")
    told = read(tmp_path / "heartbeat.json")
    assert (told["phase"], told["step"]) == ("train", 7)


def test_what_the_trainer_knows_about_itself_is_its_kind(heartbeat, tmp_path):
    end_with(NonFinite("loss nan"), heartbeat, tmp_path / "error.json")
    value = read(tmp_path / "error.json")
    assert (value["exception"], value["kind"]) == ("trainer.errors.NonFinite", "non_finite")


def test_the_first_rank_to_fail_has_the_word(heartbeat, tmp_path):
    end_with(ConfigInvalid("first"), heartbeat, tmp_path / "error.json")
    end_with(RuntimeError("second"), heartbeat, tmp_path / "error.json")
    assert read(tmp_path / "error.json")["message"] == "first"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["error.json", "heartbeat.json"]


def test_an_exit_on_purpose_and_an_end_without_error_leave_no_last_words(heartbeat, tmp_path):
    end_with(SystemExit(3), heartbeat, tmp_path / "error.json")
    with LastWords(tmp_path / "error.json", heartbeat):
        pass
    assert not (tmp_path / "error.json").exists()


def test_last_words_that_cannot_be_written_do_not_hide_the_error(heartbeat, tmp_path, capsys):
    end_with(RuntimeError("boom"), heartbeat, tmp_path / "no such folder" / "error.json")
    assert "the reason is in this log alone" in capsys.readouterr().err


READING = StepReading(step=120, loss=2.3141, lr=5.9e-4, grad_norm=0.712, step_s=0.3149, tokens_per_s=12345.6)


def test_the_step_line_is_as_the_log_readers_expect():
    expected = "step 120/380 loss 2.314 lr 5.9e-04 grad 0.71 12.3 ktok/s 0.31 s/step"
    assert step_line(READING, 380) == expected


def test_metrics_lines_have_the_same_keys_whatever_their_kind(tmp_path):
    record_step(tmp_path / "m", READING)
    record_eval(tmp_path / "m", 120, 1.5)
    train, evaluation = map(json.loads, (tmp_path / "m").read_text().splitlines())
    assert set(train) == set(evaluation)
    assert (train["kind"], train["loss"], train["acceptance_length"]) == ("train", 2.3141, None)
    assert (evaluation["kind"], evaluation["loss"], evaluation["acceptance_length"]) == ("eval", None, 1.5)
