"""eval: the far command line, and what is made of its answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.cli.evaluating import decoded_lines
from orchestrator.errors import CommandFailed, CommandTimeout, ConfigError, GuestError
from orchestrator.evaluation import argv, evaluate, parse
from orchestrator.launch import RunSpec
from tests.unit.connection.fakes import FakeShell, result

SPEC = RunSpec(run="r", python="/opt/py", config="tiny", trainer_dir="/state/trainers/aa")
BODY = {"schema": 1, "acceptance_length": 1.75, "per_position": [0.9, 0.5, 0.35], "step": 380}


def asked(spec: RunSpec = SPEC, **other: Any) -> list[str]:
    fields: dict[str, Any] = {"prompts": None, "temperature": None, "limit_s": 60, **other}
    return list(argv(spec, "/state/runs/r", 2, **fields))


def test_the_runs_own_trainer_is_asked_and_ended_by_the_far_side_itself():
    assert asked() == [
        *("env", "-C", "/state/trainers/aa", "LC_ALL=C.UTF-8", "PYTHONUNBUFFERED=1"),
        *("timeout", "-k", "10", "60"),
        *("/opt/py", "-m", "trainer", "eval", "--config", "tiny", "--run-dir", "/state/runs/r", "--json"),
    ]


def test_what_was_asked_for_is_passed_on():
    assert asked(prompts=32, temperature=0.7)[-4:] == ["--prompts", "32", "--temperature", "0.7"]
    spec = RunSpec(run="r", trainer_dir="/t", gpus=(0, 3), checkpoint_dir="/big")
    assert {"CUDA_VISIBLE_DEVICES=0,3", "DFLASHCTL_CHECKPOINT_DIR=/big"} <= set(asked(spec))


@pytest.mark.parametrize("spec", [RunSpec(run="r", command=("train",)), RunSpec(run="r", config="tiny")])
def test_a_trainer_of_another_kind_cannot_be_asked(spec):
    with pytest.raises(ConfigError, match="only runs of the bundled trainer"):
        asked(spec)


def test_the_attempts_configuration_is_the_one_measured_and_no_failure_is_injected():
    spec = RunSpec(
        run="r", trainer_dir="/t", config_toml="a = 1", overrides=(("eval.prompts", "9"),), inject=("oom@3",)
    )
    words = asked(spec)
    assert words[words.index("eval") + 1 :][:4] == [
        *("--config", "/state/runs/r/attempts/2/config.toml", "--set", "eval.prompts=9"),
    ]
    assert "--inject" not in words


def test_the_answer_may_be_laid_out_on_many_lines_and_hold_the_shares_deeper():
    body = {"acceptance_length": 2, "acceptance": {"per_position": [1, 0]}}
    assert parse("here", b"x\n" + json.dumps(body, indent=2).encode()).per_position == (1.0, 0.0)


def test_the_answer_is_the_last_line():
    found = parse("here", b"loading\n" + json.dumps(BODY).encode() + b"\n\n")
    assert (found.acceptance_length, found.per_position) == (1.75, (0.9, 0.5, 0.35))
    assert found.body["step"] == 380


@pytest.mark.parametrize(
    "stdout",
    [
        b"",
        b"done\n",
        b"[1]\n",
        json.dumps(BODY).encode() + b"\ndone\n",
        json.dumps(BODY).encode()[1:],
        json.dumps({**BODY, "acceptance_length": "1"}).encode(),
        json.dumps({**BODY, "acceptance_length": float("nan")}).encode(),
        json.dumps({**BODY, "acceptance_length": True}).encode(),
        json.dumps({**BODY, "per_position": None}).encode(),
        json.dumps({**BODY, "per_position": [0.5, 1.5]}).encode(),
        json.dumps({**BODY, "per_position": ["\x1b[31m"]}).encode(),
        b"[" * 100_000,
    ],
)
def test_an_answer_of_another_kind_is_no_answer(stdout):
    with pytest.raises(GuestError, match=r"^here: ") as caught:
        parse("here", stdout)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        (78, ConfigError, "the trainer refused: no checkpoint"),
        (124, CommandTimeout, "not done within 60 s"),
        (1, CommandFailed, "ended with exit code 1: trainer: ConfigInvalid: no checkpoint"),
        (None, CommandFailed, "an unknown exit code"),
    ],
)
def test_an_end_without_an_answer_is_told_as_what_it_was(code, error, said):
    shell = FakeShell(lambda words, stdin: result(code, err=b"x\ntrainer: ConfigInvalid: no checkpoint\n"))
    with pytest.raises(error, match=said):
        evaluate(shell, ("true",), limit_s=60)


def test_the_figures_of_real_decoding_are_told_where_they_are_figures():
    decoded = {"drafter": 2.5, "lookup": 1.0, "prompts": 6, "new_tokens": 96, "exact": True}
    assert decoded_lines({"decoded": decoded, "sampled": {"temperature": 0.7, "drafter": 2.25}}) == [
        "greedy decoding: acceptance length 2.500, prompts 6, new tokens 96, lookup 1",
        "sampling: acceptance length 2.250, temperature 0.7",
    ]
    assert decoded_lines({"decoded": None, "sampled": {"drafter": "\x1b[31m"}}) == []
