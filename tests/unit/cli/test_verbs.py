"""Verbs over a record that holds little: each says what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.cli import app
from orchestrator.cli.context import SETTINGS
from orchestrator.errors import Exit
from orchestrator.record import Record
from orchestrator.types.failure import Diagnosis, Evidence, FailureClass, Role, RunState

if TYPE_CHECKING:
    from collections.abc import Callable

    Say = Callable[..., tuple[int, str]]


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a command line over a new record; its code and what it wrote, in one line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for key in ("inventory", "record", "verbose", "no_color"):
        monkeypatch.setattr(SETTINGS, key, getattr(SETTINGS, key))

    def run(*words: str) -> tuple[int, str]:
        code = app.run(["--record", "r.sqlite3", "--inventory", str(tmp_path / "inventory"), *words])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "a.yaml").write_text(
        "hosts: {pve: {address: 10.1.2.6}}\ncontainers: {trainer: {host: pve, ct: 200}}\n"
    )
    return run


def test_a_watch_of_an_empty_record_says_that_there_is_no_run(say):
    code, text = say("watch")
    assert code == Exit.NOT_FOUND
    assert "no run in the record; start one with `dflashctl launch`" in text


@pytest.mark.parametrize(
    ("attempt", "text"), [("9", "there is no attempt 9"), ("1", "r1: no failure on record")]
)
def test_an_explanation_of_an_attempt_that_is_not_there_says_so(say, attempt, text):
    with Record.open(Path("r.sqlite3")) as record:
        run = record.save_run("r1", {}, "local", {}, SETTINGS.clock.now())
        record.save_attempt(run.id, 1)
    code, said = say("explain", "r1", "--attempt", attempt)
    assert (code, text in said) == (Exit.NOT_FOUND, True), said


def test_the_inventory_and_a_mistyped_container_tell_the_files(say, tmp_path):
    file = str(tmp_path / "inventory" / "a.yaml")
    assert f"read from {file}" in say("inventory", "list")[1]
    listed = json.loads(say("inventory", "list", "--json")[1])
    assert listed["sources"] == [file]
    assert [(each["name"], each["host"], each["ct"]) for each in listed["containers"]] == [
        ("trainer", "pve", 200)
    ]
    assert [(each["name"], each["address"]) for each in listed["hosts"]] == [("pve", "10.1.2.6")]
    code, text = say("launch", "--container", "trianer")
    assert code == Exit.NOT_FOUND
    assert f"read from {file}" in text


def test_an_explanation_names_the_stacks_that_were_kept_and_what_was_told_before(say):
    now = SETTINGS.clock.now()
    hung = Diagnosis(state=RunState.HUNG, failure=FailureClass.HANG, summary="hung: no progress in train")
    slow = Diagnosis(
        state=RunState.HEALTHY, failure=FailureClass.STRAGGLERS, summary="rank 2 slower than the rest"
    )
    with Record.open(Path("r.sqlite3")) as record:
        run = record.save_run("r1", {}, "local", {}, now)
        record.save_attempt(run.id, 1)
        record.diagnosis(run.id, 1, slow, now)
        record.diagnosis(run.id, 1, hung, now)
        action = record.intend(run.id, 1, "stacks", "it hangs", {}, now)
        record.outcome(action, "rank 0 in wait (loop.py:9); kept in attempts/1/stacks/t", now)
    code, said = say("explain", "r1")
    assert code == Exit.OK
    assert said.startswith("hang in attempt 1 of r1 at local, ")
    assert "stacks: rank 0 in wait (loop.py:9); kept in attempts/1/stacks/t" in said
    assert "before it: rank 2 slower than the rest" in said


def test_a_hang_that_was_stopped_is_explained_with_what_was_read_of_it(say):
    now = SETTINGS.clock.now()
    read = Evidence(source="gpu", text="GPU 0: 100 % at 120 W since", role=Role.CONFIRMATION)
    hung = Diagnosis(
        state=RunState.HUNG, failure=FailureClass.HANG, summary="hung: no progress", evidence=(read,)
    )
    dead = Diagnosis(state=RunState.DEAD, failure=FailureClass.HANG, summary="died: it hung")
    with Record.open(Path("r.sqlite3")) as record:
        run = record.save_run("r1", {}, "local", {}, now)
        record.save_attempt(run.id, 1)
        record.diagnosis(run.id, 1, hung, now)
        record.diagnosis(run.id, 1, hung, now)  # again, after the container was frozen
        record.diagnosis(run.id, 1, dead, now)
    said = say("explain", "r1")[1]
    assert "died: it hung" in said
    assert said.count("before it: hung: no progress; GPU 0: 100 % at 120 W since") == 1


def test_an_explanation_ends_with_how_the_attempt_after_it_went_and_with_the_playbook_asked_for(say):
    now = SETTINGS.clock.now()
    died = Diagnosis(state=RunState.DEAD, failure=FailureClass.SIGNAL_EXIT, summary="died: killed")
    Path("mine.yaml").write_text(
        "extends: default\nrules:\n  signal_exit: {act: call, why: Ask Ann about it.}\n"
    )
    with Record.open(Path("r.sqlite3")) as record:
        run = record.save_run("r1", {}, "local", {}, now)
        record.save_attempt(run.id, 1, started_at=now, ended_at=now, by="user")
        record.diagnosis(run.id, 1, died, now)
        record.save_attempt(run.id, 2, started_at=now, by="watch")
    assert "then: attempt 2 started by watch" in (said := say("explain", "r1")[1])
    assert "attempt 1 ended" not in said
    assert "playbook: call. Ask Ann about it." in say("explain", "r1", "--playbook", "mine.yaml")[1]


def test_a_failure_that_no_watch_saw_is_not_denied(say):
    with Record.open(Path("r.sqlite3")) as record:
        record.save_run("r1", {}, "local", {}, SETTINGS.clock.now())
    text = say("explain", "r1")[1]
    assert "no failure on record, where a watch puts them; `dflashctl status r1` looks at it now" in text


def test_an_attempt_can_be_named_only_for_kept_stacks(say):
    code, said = say("stacks", "r1", "--attempt", "1")
    assert (code, "belongs to --kept" in said) == (Exit.USAGE, True), said


def test_a_playbook_that_is_gone_hides_no_run_and_no_explanation(say, tmp_path):
    now = SETTINGS.clock.now()
    died = Diagnosis(state=RunState.DEAD, failure=FailureClass.OOM_CUDA, summary="died: the GPU was full")
    place = {"host": None, "state_dir": str(tmp_path / "far")}
    with Record.open(Path("r.sqlite3")) as record:
        for name in ("r1", "r2"):
            run = record.save_run(name, {}, "local", place, now, playbook=str(tmp_path / "gone.yaml"))
            record.save_attempt(run.id, 1)
            record.diagnosis(run.id, 1, died, now)
    code, said = say("ps")
    assert code == Exit.OK
    assert said.count("its playbook cannot be used, so the shipped one is shown") == 2
    assert "r1" in said
    for verb in ("explain", "status"):
        said = say(verb, "r1")[1]
        assert "gone.yaml: cannot be read" in said
        assert "r1 at local" in said, verb


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--attempt 1 --previous", "--previous and --attempt name two attempts; give one of them"),
        ("--grep (", "--grep: '(': "),
        (
            "--since tomorrow",
            "--since: 'tomorrow' is neither how long ago nor a time; write a number and a unit",
        ),
        ("--attempt 0", "'--attempt': Input should be greater than or equal to 1"),
        ("--rank -1", "'--rank': Input should be greater than or equal to 0"),
    ],
)
def test_logs_says_which_option_cannot_be_meant(say, words, text):
    code, said = say("logs", *words.split())
    assert (code, text in said) == (Exit.USAGE, True), said
