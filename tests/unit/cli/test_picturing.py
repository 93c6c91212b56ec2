from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest

from orchestrator.cli.app import run as cli
from orchestrator.errors import Exit
from orchestrator.record import Record

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 11, 29, tzinfo=timezone.utc)
NAME = "n" * 60


@pytest.fixture(autouse=True)
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "record.sqlite3"
    with Record.open(path) as opened:
        target = {"host": None, "ct": None}
        run = opened.save_run(NAME, target, "local", {}, NOW).id
        opened.save_attempt(run, 1, started_at=NOW)
        opened.add_metrics(run, 1, [{"step": n, "loss": 3 - n / 100} for n in range(1, 100)], NOW)
    monkeypatch.setenv("DFLASHCTL_RECORD", str(path))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return path


@pytest.mark.parametrize(
    ("words", "name", "magic"),
    [
        ((), f"{NAME}.png", b"\x89PNG"),
        (("-o", "svg"), f"{NAME}.svg", b"<svg "),
        (("-o", "a.svg"), "a.svg", b"<svg "),
        (("--out", "a.png"), "a.png", b"\x89PNG"),
    ],
)
def test_out_is_a_kind_or_a_file(words, name, magic, tmp_path, capsys):
    assert cli(["plot", *words]) == Exit.OK
    assert capsys.readouterr().out.strip() == name
    assert (tmp_path / name).read_bytes().startswith(magic)


@pytest.mark.parametrize("out", ["a.jpg", "pdf", "folder/"])
def test_another_kind_is_refused_with_those_there_are(out, capsys):
    assert cli(["plot", "-o", out]) == Exit.USAGE
    told = capsys.readouterr().err
    assert f"--out {out}: it is neither png, svg, terminal nor" in told
    assert "Traceback" not in told


def test_the_terminal_gets_lines_of_80_columns_and_no_file(tmp_path, capsys):
    assert cli(["plot", "-o", "terminal"]) == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(NAME)
    assert max(map(len, lines)) <= 80
    assert not list(tmp_path.glob("*.png"))


def test_a_report_is_a_file_named_after_the_run(tmp_path, capsys):
    assert cli(["report"]) == Exit.OK
    assert capsys.readouterr().out.strip() == f"{NAME}.html"
    assert (tmp_path / f"{NAME}.html").read_text().startswith("<!doctype html>")


def test_a_report_goes_to_standard_output_and_json_tells_of_the_file(tmp_path, capsys):
    assert cli(["report", "-o", "-"]) == Exit.OK
    assert capsys.readouterr().out.startswith("<!doctype html>")
    assert cli(["report", "--json", "--out", "r.html"]) == Exit.OK
    told = json.loads(capsys.readouterr().out)
    assert told["path"] == "r.html"
    assert told["bytes"] == (tmp_path / "r.html").stat().st_size
    assert told["attempts"] == [1]
    assert cli(["report", "--json", "--out", "-"]) == Exit.USAGE


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("nobody",), Exit.NOT_FOUND, "no run 'nobody' in the record"),
        (("--attempt", "9"), Exit.NOT_FOUND, "there is no attempt 9 on record; attempts: 1"),
        (("-o", "missing/r.html"), Exit.USAGE, "the report cannot be written"),
        (("--playbook", "missing.yaml"), Exit.USAGE, "missing.yaml"),
    ],
)
def test_what_a_report_cannot_do_is_told_in_a_line(words, code, told, capsys):
    assert cli(["report", *words]) == code
    assert told in capsys.readouterr().err
