"""relaunch: what may be changed of which run."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.cli.changing import changed
from orchestrator.errors import ConfigError
from orchestrator.launch import RunSpec

OWN = RunSpec(run="r1", command=("train", "x"))
TINY = RunSpec(run="r1", config="tiny", overrides=(("seed", "1"),))
NO_INJECTION: dict[str, Any] = {"inject": ()}


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        (NO_INJECTION, [("optim.lr", "1")]),
        ({"inject": (), "config": "fast", "config_toml": None}, []),
        ({"inject": ("nan@3",)}, []),
    ],
)
def test_a_command_of_ones_own_takes_no_configuration(fields, settings):
    with pytest.raises(ConfigError, match="r1 runs a command of its own") as raised:
        changed(OWN, fields, settings)
    assert "launch --run r1 ... -- COMMAND" in str(raised.value.hint)


def test_a_command_of_ones_own_is_started_again_as_it_was():
    assert changed(OWN, NO_INJECTION, []) == OWN
    assert changed(OWN, {**NO_INJECTION, "python": "/venv/bin/python"}, []).python == "/venv/bin/python"


def test_the_bundled_trainer_takes_them():
    spec = changed(TINY, {"inject": ("nan@3",)}, [("seed", "2"), ("optim.lr", "1")])
    assert spec.inject == ("nan@3",)
    assert dict(spec.overrides) == {"seed": "2", "optim.lr": "1"}
