"""What a launch says: what comes next, and what it did not do."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cli.reporting import ignored, report
from orchestrator.launch import RunSpec, spec_document
from orchestrator.operate import Launched

TINY = RunSpec(run="r1", config="tiny", overrides=(("seed", "1"),))
FULL = replace(TINY, inject=("nan@6",), python="/venv/bin/python", gpus=(0, 3), env_names=("HF_TOKEN",))
TRUE = RunSpec(run="r1", command=("true", "x"))


def known(spec: RunSpec) -> dict[str, Any]:
    return spec_document(spec, state_dir="/s", attempt=1, created_at="")


@pytest.mark.parametrize(
    ("asked", "runs", "left"),
    [
        (TINY, TINY, ()),
        (RunSpec(run="r1", config="fast"), TINY, ("--config fast",)),
        (RunSpec(run="r1", config="tiny", config_toml="seed = 1"), TINY, ("--config tiny",)),
        (RunSpec(run="r1", config="tiny", overrides=(("seed", "2"),)), TINY, ("--set seed=2",)),
        (TRUE, TRUE, ()),
        (TRUE, TINY, ("-- COMMAND",)),
        (RunSpec(run="r1", command=("false",)), TRUE, ("-- COMMAND",)),
        (replace(TINY, inject=("nan@6",)), TINY, ("--inject nan@6",)),
        (replace(TINY, python="/venv/bin/python"), TINY, ("--python /venv/bin/python",)),
        (replace(TINY, gpus=(0, 3)), TINY, ("--gpus 0,3",)),
        (replace(TRUE, gpus=(0, 3)), TRUE, ("--gpus 0,3",)),
        (
            replace(TINY, env_names=("HF_TOKEN", "PATH")),
            replace(TINY, env_names=("PATH",)),
            ("--env HF_TOKEN",),
        ),
        (FULL, FULL, ()),
    ],
)
def test_what_a_living_run_does_not_take_over_is_found(asked, runs, left):
    given = ["--config", "--python", *(["--gpus"] if asked.gpus else [])]
    assert ignored(asked, known(runs), given=given) == left


def test_a_default_that_nobody_named_is_not_ignored():
    defaults = RunSpec(run="r1", config="tiny", python="python3", gpus=None)
    assert ignored(defaults, known(TRUE), given=[]) == ()
    assert ignored(defaults, known(replace(FULL, overrides=())), given=[]) == ()


def said(capsys: pytest.CaptureFixture[str], already: str | None, runs: RunSpec = TINY, **words: Any) -> str:
    row: Any = SimpleNamespace(name="r1", target_key="pve/200", spec=known(runs))
    report(Launched(row=row, attempt=1, resumes_at=None, already=already), TINY, **words)
    return capsys.readouterr().out


def test_a_launch_ends_with_the_next_command_unless_the_watch_follows(capsys):
    assert "`dflashctl watch r1`" in said(capsys, None, as_json=False).splitlines()[-1]
    assert "dflashctl watch" not in said(capsys, None, as_json=False, in_line=True)
    assert "dflashctl watch" not in said(capsys, None, as_json=True)


def test_a_launch_of_a_living_run_tells_what_it_ignored_and_what_applies_it(capsys):
    text = said(capsys, "alive", as_json=False, left=("--set seed=2",))
    assert "ignored: --set seed=2; `dflashctl relaunch r1` with the same applies it" in text
    assert "another --run starts it" in said(capsys, "alive", as_json=False, left=("-- COMMAND",))
    assert "another --run starts it" in said(capsys, "alive", TRUE, as_json=False, left=("--set seed=2",))
    assert "ignored:" not in said(capsys, "alive", as_json=False)


def test_a_relaunch_past_its_last_step_says_that_nothing_is_left(capsys):
    row: Any = SimpleNamespace(name="r1", target_key="pve/200", spec=known(TINY))
    left = "it has come to step 500 already, and total_steps is 400: nothing is left to train"
    report(Launched(row=row, attempt=2, resumes_at=500, nothing_left=left), TINY, as_json=False)
    assert capsys.readouterr().out.splitlines()[1] == f"  {left}"
