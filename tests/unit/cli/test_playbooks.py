"""playbook show and check, as a person reads them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from orchestrator.cli.app import run
from orchestrator.errors import Exit
from orchestrator.playbook import shipped
from orchestrator.types.failure import FailureClass

if TYPE_CHECKING:
    from pathlib import Path


def answer(capsys: pytest.CaptureFixture[str], *words: str, code: Exit = Exit.OK) -> str:
    assert run(["playbook", *words]) == code
    out, err = capsys.readouterr()
    return out if code is Exit.OK else err


def test_every_class_is_shown_with_what_is_done_about_it(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = answer(capsys, "show")
    assert "at most 12 attempts in 24 hours" in text
    for failure in FailureClass:
        assert failure.value in text
    body = json.loads(answer(capsys, "show", "--json"))
    assert {rule["class"] for rule in body["rules"]} == {failure.value for failure in FailureClass}
    assert body["max_attempts_per_day"] == 12
    assert body["allow"] == {"loss.chunk_tokens": {"minimum": 512, "maximum": None}}


def test_why_is_readable_on_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = answer(capsys, "show")
    table = text[text.index("CLASS") :].splitlines()
    assert max(map(len, table)) <= 80
    rules = json.loads(answer(capsys, "show", "--json"))["rules"]
    words = " ".join(text.split())
    assert all(rule["why"] in words for rule in rules), "nothing is cut"
    assert len(table) < 3 * len(rules)


def test_one_rule_is_shown_with_its_ladder_and_what_cannot_happen(capsys):
    text = answer(capsys, "show", "oom_cuda")
    assert "rung 2: loss.chunk_tokens x 0.5." in text
    assert "4 times without an advancing checkpoint, then give_up" in text
    assert "rung 4 changes data.anchors, which `allow` does not name; it is passed over" in text
    once = answer(capsys, "show", "fx_trace_race")
    assert "once without an advancing checkpoint, then call" in once
    assert "before it: restore_cache" in once
    (rule,) = json.loads(answer(capsys, "show", "oom_cuda", "--json"))["rules"]
    assert rule["ladder"][0]["env"] == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def test_a_slip_in_a_class_is_told_with_the_nearest_one(capsys):
    text = answer(capsys, "show", "oom_cud", code=Exit.NOT_FOUND)
    assert "no failure class 'oom_cud'; did you mean \"oom_cuda\"?" in text


def test_a_right_file_is_checked_and_told_where_it_differs(capsys, tmp_path: Path):
    path = tmp_path / "mine.yaml"
    rule = "rules:\n  hang: {act: call, why: A person wants to look at it first.}\n"
    path.write_text(f"extends: default\nallow: {{data.anchors: {{minimum: 16}}}}\n{rule}")
    text = answer(capsys, "check", str(path))
    assert "right; other than the shipped one in hang" in text
    assert "note" not in text, "the owner's word for anchors is there"
    body = json.loads(answer(capsys, "check", str(shipped()), "--json"))
    assert body["differs_in"] == []
    assert len(body["notes"]) == 2


def test_the_limits_of_a_hang_are_shown_and_those_of_its_own_are_told(capsys, monkeypatch, tmp_path: Path):
    monkeypatch.setenv("COLUMNS", "200")
    assert "silence as learned from its steps" in answer(capsys, "show")
    path = tmp_path / "mine.yaml"
    path.write_text("extends: default\nlimits: {silence: 30m, train_steps: 8}\n")
    assert "silence 30m" in answer(capsys, "show", "--playbook", str(path))
    body = json.loads(answer(capsys, "show", "--playbook", str(path), "--json"))["limits"]
    assert (body["silence_s"], body["train_s"], body["train_steps"]) == (1800, 600, 8)
    assert "limits of its own: train_steps 8, silence 30m" in answer(capsys, "check", str(path))
    told = json.loads(answer(capsys, "check", str(path), "--json"))
    assert told["limits"] == {"silence_s": 1800, "train_steps": 8}
    assert "limits" not in answer(capsys, "check", str(shipped()))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("extends: default\nallow: {a: 3}\n", "mine.yaml:2: allow.a: 3 is not allowed"),
        ("extends: default\nrules: {hang: {act: dance}}\n", "mine.yaml:2: rules.hang"),
    ],
)
def test_a_wrong_file_is_told_with_file_and_line(capsys, tmp_path: Path, text: str, said: str):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    assert said in answer(capsys, "check", str(path), code=Exit.USAGE)
    assert "cannot be read" in answer(capsys, "check", str(tmp_path / "none.yaml"), code=Exit.USAGE)


def test_rules_of_the_users_own_are_shown_before_the_classes(capsys, tmp_path: Path):
    path = tmp_path / "mine.yaml"
    own = "{name: licence, regex: licence server is away, act: call, why: A person asks for a licence.}"
    path.write_text(f"extends: default\ncustom: [{own}]\n")
    first = json.loads(answer(capsys, "show", "--playbook", str(path), "--json"))["rules"][0]
    assert (first["name"], first["act"]) == ("licence", "call")


def test_a_rule_of_ones_own_is_shown_by_its_name_and_told_of_a_checked_file(capsys, tmp_path: Path):
    path = tmp_path / "mine.yaml"
    own = "{name: licence, regex: licence server is away, act: call, why: A person asks for a licence.}"
    path.write_text(f"extends: default\ncustom: [{own}]\n")
    for name in ("licence", "custom:licence"):
        text = answer(capsys, "show", name, "--playbook", str(path))
        assert text.startswith("custom:licence: call. A person asks for a licence.")
    assert "rules of its own, the first that matches decides: licence" in answer(capsys, "check", str(path))
    assert json.loads(answer(capsys, "check", str(path), "--json"))["custom"] == ["licence"]


def test_a_rung_outside_its_bounds_and_attempts_past_the_ladder_are_told(capsys, tmp_path: Path):
    path = tmp_path / "mine.yaml"
    rungs = ", ".join(f"{{why: Fewer rows at once., set: {{data.batch_rows: {rows}}}}}" for rows in (4, 1))
    rule = f"{{act: relaunch_with, attempts: 5, why: Less may fit on the card., ladder: [{rungs}]}}"
    path.write_text(
        f"extends: default\nallow: {{data.batch_rows: {{minimum: 2}}}}\nrules: {{oom_cuda: {rule}}}\n"
    )
    notes = json.loads(answer(capsys, "check", str(path), "--json"))["notes"]
    wrong = "data.batch_rows=1 is outside what the playbook allows, at least 2"
    assert f"oom_cuda: rung 2: {wrong}; it is passed over" in notes
    assert "oom_cuda: the ladder has 2 rungs, so of 5 attempts no more come" in notes
    assert not any(note.startswith("oom_cuda: rung 1") for note in notes)


def test_several_wrong_things_are_told_apart_in_one_line(capsys, tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text("extends: default\njitter: 2\ngrace: 5\n")
    said = answer(capsys, "check", str(path), code=Exit.USAGE)
    assert said.count("\n") == 1
    assert f"; {path}:3: grace: 5 is not allowed" in said
