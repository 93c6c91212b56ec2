"""record: where it writes, and what it never replaces."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.cli import app
from orchestrator.cli.context import SETTINGS
from orchestrator.errors import Exit
from orchestrator.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    Say = Callable[..., tuple[int, str]]


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a command line over a record with one run whose folder is gone; its code and what it wrote."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with Record.open(Path("r.sqlite3")) as record:
        place = {"host": None, "state_dir": str(tmp_path / "far")}
        row = record.save_run("b32", {}, "local", place, SETTINGS.clock.now())
        record.save_attempt(row.id, 1)

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(SETTINGS, "record", None)
        code = app.run(["--record", "r.sqlite3", *words])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return run


def test_a_folder_that_is_no_recording_is_never_replaced(say, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("all of it")
    for where in (str(mine), "."):
        for flags in ((), ("--force",)):
            code, text = say("record", "b32", "--out", where, *flags)
            assert (code, "no recording" in text) == (Exit.USAGE, True), text
    assert (mine / "thesis.tex").read_text() == "all of it"
    assert (tmp_path / "r.sqlite3").exists()


@pytest.mark.parametrize("name", ["rec", "rec.tar.gz", "rec.tgz"])
def test_a_recording_is_replaced_with_force_only(say, tmp_path, name):
    place = tmp_path / name
    assert say("record", "b32", "--out", name)[0] == Exit.OK
    code, text = say("record", "b32", "--out", name)
    assert (code, "give --force to replace it" in text) == (Exit.USAGE, True), text
    assert say("record", "b32", "--out", name, "--force")[0] == Exit.OK
    assert place.is_dir() == (name == "rec")
    if place.is_file():
        with tarfile.open(place) as archive:
            assert "rec/recording.json" in archive.getnames()
    code, text = say("replay", name)
    assert (code, "b32, recorded" in text) == (Exit.OK, True), text


def test_an_empty_folder_is_free(say, tmp_path):
    (tmp_path / "new").mkdir()
    assert say("record", "b32", "--out", "new")[0] == Exit.OK
    assert (tmp_path / "new" / "recording.json").is_file()
