"""rules: what there is, what one means, and which of them match a log, line by line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.classify.match import BY_NAME
from orchestrator.cli import app
from orchestrator.errors import Exit
from orchestrator.playbook import parse
from orchestrator.replay.linehits import MAX_LINE_BYTES, LineReader
from orchestrator.types.failure import FailureClass

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Say = Callable[..., str]

BOOK = """\
extends: default
custom:
  - name: lustre_stall
    regex: 'LustreError: .*timed out'
    class: io_error
    label: Lustre did not answer
    act: relaunch
    attempts: 3
    why: The servers come back by themselves.
"""
LOG = """\
step 1 | loss 2.5
\u001b[31m[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\u001b[0m
bar\rLustreError: 11-0: timed out
done
"""


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    (tmp_path / "my.yaml").write_text(BOOK)
    (tmp_path / "train.log").write_text(LOG, newline="")
    monkeypatch.chdir(tmp_path)

    def run(*words: str, code: int = Exit.OK) -> str:
        assert app.run(["rules", *words]) == code
        shown = capsys.readouterr()
        return shown.out + shown.err

    return run


def test_every_class_is_listed_and_shown_with_its_signatures(say):
    body = json.loads(say("list", "--json"))
    assert [row["class"] for row in body["classes"]] == [failure.value for failure in FailureClass]
    assert body["custom"] == []
    shown = {signature["name"] for row in body["classes"] for signature in row["signatures"]}
    assert shown == set(BY_NAME)
    for failure in FailureClass:
        row = json.loads(say("show", failure.value, "--json"))
        assert row["sentence"]
        assert row["not_proof"]
        assert row["act"]


def test_a_rule_of_ones_own_is_listed_shown_and_named_where_a_name_is_wrong(say):
    assert json.loads(say("list", "--json", "--playbook", "my.yaml"))["custom"][0]["name"] == "lustre_stall"
    assert "custom:lustre_stall" in say("list", "--playbook", "my.yaml")
    for name in ("lustre_stall", "custom:lustre_stall"):
        assert "regex: LustreError: .*timed out" in say("show", name, "--playbook", "my.yaml")
    wrong = say("show", "oom", "--playbook", "my.yaml", code=Exit.NOT_FOUND)
    assert "no such class or rule" in wrong
    assert "custom:lustre_stall" in wrong


def test_lines_are_told_with_their_offsets_ranks_and_rules_and_what_they_come_to(say):
    body = json.loads(say("test", "train.log", "--playbook", "my.yaml", "--exit-status", "1", "--json"))
    oom, own = body["lines"]
    assert (oom["line"], oom["rank"]) == (2, 3)
    assert oom["offset"] == LOG.index("\u001b[31m")
    assert [rule["class"] for rule in oom["rules"] if rule["counts"]] == ["oom_cuda"]
    assert own["offset"] == LOG.index("LustreError")
    assert own["rules"][0]["name"] == "custom:lustre_stall"
    assert body["together"]["class"] == "io_error"
    assert body["together"]["decision"]["rule"] == "custom:lustre_stall"
    text = say("test", "train.log", "--playbook", "my.yaml", "--exit-status", "1", "--limit", "1")
    assert "... and 1 more" in text
    assert "custom:lustre_stall" not in say("test", "train.log")


def test_what_a_watch_would_not_see_is_not_shown_as_a_match(say, tmp_path):
    (tmp_path / "train.log").write_text("x" * 5000 + " LustreError: timed out\n")
    body = json.loads(say("test", "train.log", "--playbook", "my.yaml", "--exit-status", "1", "--json"))
    assert body["matched"] == 0
    assert body["together"]["class"] == "unknown"


def test_healthy_lines_match_nothing(say, tmp_path):
    (tmp_path / "train.log").write_text("step 1 | loss 2.5\nsaving, no errors so far\n" * 50)
    body = json.loads(say("test", "train.log", "--playbook", "my.yaml", "--json"))
    assert (body["matched"], body["together"]["decision"]["kind"]) == (0, "none")


def test_a_file_that_is_not_there_is_said_plainly(say):
    assert "no such file" in say("test", "none.log", code=Exit.NOT_FOUND)


@settings(deadline=None)
@given(st.integers(1, 50))
def test_chunks_do_not_matter_and_a_long_line_is_not_kept(size):
    rules = parse(BOOK, "b").custom
    log = LOG.encode() + b"x" * (3 * MAX_LINE_BYTES) + b"\nLustreError: timed out"
    whole = LineReader(rules)
    expected = whole.feed(log) + whole.end()
    reader, found = LineReader(rules), []
    step = size * 997
    for start in range(0, len(log), step):
        found += reader.feed(log[start : start + step])
        assert len(reader._held) <= MAX_LINE_BYTES
    assert found + reader.end() == expected
    assert [hit.number for hit in expected] == [2, 4, 7]
    assert log[expected[-1].offset :] == b"LustreError: timed out"
