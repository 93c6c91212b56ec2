"""What the trainer's check of its configuration comes to, in words for a person."""

from __future__ import annotations

import pytest

from orchestrator.errors import CommandFailed, ConfigError, EnvironmentIncomplete, Exit
from orchestrator.launch import RunSpec
from orchestrator.preparing import check_argv, check_here, refusal

OWN = RunSpec(run="r1", config="my.toml", config_toml="steps = 3\n", trainer_dir="/s/trainers/ab")
BUNDLED = RunSpec(
    run="r1", config="tiny", trainer_dir="/s/t", overrides=(("optim.lr", "3e-4"),), inject=("fx-trace@12",)
)


def test_a_users_own_file_goes_in_on_standard_input_and_a_bundled_one_by_name():
    assert check_argv(OWN)[-3:] == ["--check-config", "--config", "-"]
    words = ["--config", "tiny", "--set", "optim.lr=3e-4", "--inject", "fx-trace@12"]
    assert check_argv(BUNDLED)[-6:] == words


def test_a_refused_configuration_is_told_by_the_name_of_the_users_file():
    said = b"a warning\ntrainer: ConfigInvalid: standard input: block.size: 0 is too small\n"
    error = refusal("h/200", OWN, 78, said)
    assert isinstance(error, ConfigError)
    why = "h/200: the trainer refused its configuration: my.toml: block.size: 0 is too small"
    assert str(error) == why


@pytest.mark.parametrize("code", [126, 127])
def test_a_python_that_is_not_there_is_no_fault_of_the_configuration(code):
    error = refusal("h/200", BUNDLED, code, b"env: 'python3': No such file or directory\n")
    assert isinstance(error, CommandFailed)
    assert "--python python3: env: 'python3': No such file" in str(error)
    assert "--python PATH" in str(error)


def test_a_trainer_that_cannot_be_imported_is_told_with_its_last_line():
    error = refusal("h/200", BUNDLED, 1, b"Traceback:\nModuleNotFoundError: No module named 'torch'\n")
    assert isinstance(error, CommandFailed)
    assert "python3 cannot run the trainer: ModuleNotFoundError: No module named 'torch'" in str(error)


def test_packages_that_are_missing_are_no_fault_of_the_configuration():
    said = b"trainer: ConfigInvalid: /usr/bin/python3: torch and numpy not installed; run python3 -m pip"
    error = refusal("h/200", BUNDLED, 78, said)
    assert isinstance(error, EnvironmentIncomplete)
    assert error.exit_code is Exit.NOT_READY
    shown = "h/200: the trainer's environment is incomplete: /usr/bin/python3: torch and numpy not installed"
    assert error.message == shown
    assert str(error.hint).startswith("`dflashctl provision` makes one that has them")


def test_an_end_that_is_not_known_is_told_without_a_word():
    error = refusal("h/200", BUNDLED, None, b"")
    assert isinstance(error, CommandFailed)
    assert "no word on standard error" in str(error)


@pytest.mark.parametrize(("what", "value"), [("CHECK_TIMEOUT_S", 0.001), ("sys.executable", "/no/python")])
def test_a_check_here_that_comes_to_no_end_says_nothing_of_the_configuration(monkeypatch, what, value):
    wrong = RunSpec(run="r1", config="my.toml", config_toml="no_such_key = 3\n")
    with pytest.raises(ConfigError, match="no_such_key"):
        check_here(wrong, "h/200")
    monkeypatch.setattr(f"orchestrator.preparing.{what}", value)
    check_here(wrong, "h/200")
