"""The live view as a verb: where it is shown, how it ends, and what stays on the screen afterwards."""

from __future__ import annotations

import logging
import os

import pytest

from orchestrator.cli import viewing
from orchestrator.cli.app import run
from orchestrator.cli.context import SETTINGS
from orchestrator.errors import ConfigError, Exit, OrchestratorError, PlaybookError, RecordError
from orchestrator.fleet import Board, FleetWatch
from orchestrator.record import Record
from orchestrator.terminal import plain
from orchestrator.tui import Ending, WatchApp
from orchestrator.watch.events import Level, WatchEvent
from tests.builders import NOW


@pytest.fixture
def record(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(SETTINGS, "record", tmp_path / "record.sqlite3")
    with Record.open(tmp_path / "record.sqlite3") as opened:
        yield opened


@pytest.fixture
def shown(monkeypatch):
    """Says how the view ends, and what the watch does meanwhile."""
    desks = []

    def show(ending, then=lambda desk: None):
        def view(app: WatchApp):
            desks.append(app.desk)
            then(app.desk)
            return ending

        monkeypatch.setattr(WatchApp, "run", view)
        monkeypatch.setattr(FleetWatch, "start", lambda watch: None)
        return desks

    return show


def told(text: str, kind: str = "diagnosis") -> WatchEvent:
    return WatchEvent(kind=kind, at=NOW, run="r1", target="t", attempt=1, text=text, level=Level.BAD)


def rows(record: Record, playbook: str | None = None):
    return [record.save_run("r1", {"ct": None, "host": None}, "local", {}, NOW, playbook)]


def test_top_without_a_terminal_says_what_to_do(capsys, tmp_path):
    assert run(["--record", str(tmp_path / "r.sqlite3"), "top"]) == Exit.USAGE
    said = capsys.readouterr()
    assert said.err.startswith("dflashctl: top: it needs a terminal to draw on; `dflashctl ps`")
    assert not (tmp_path / "r.sqlite3").exists()


@pytest.mark.parametrize(
    ("term", "ttys", "is_one"),
    [("xterm", 3, True), ("vt100", 3, True), ("dumb", 3, False), ("", 3, False), ("xterm", 2, False)],
)
def test_it_is_shown_only_where_all_streams_are_a_terminal_that_can_be_drawn_on(
    monkeypatch, term, ttys, is_one
):
    monkeypatch.setenv("TERM", term)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        monkeypatch.setattr(f"sys.{name}.isatty", lambda number=number: number < ttys, raising=False)
    assert viewing.is_terminal() is is_one


def test_a_watch_ends_with_the_code_of_its_runs_and_leaves_the_last_words(record, shown, capsys):
    def then(desk):
        for number in range(viewing.LAST_TOLD + 5):
            desk.board.emit(told(f"thing {number}"))
        desk.board.emit(told("step 1", "log"))

    desks = shown(Ending(Exit.GAVE_UP), then)
    code = viewing.view(record, verb="watch", rows=rows(record), acting=True, telling=False)
    assert code is Exit.GAVE_UP
    lines = [line for line in capsys.readouterr().out.splitlines() if "thing" in line]
    assert len(lines) == viewing.LAST_TOLD
    assert lines[-1].endswith("diagnosis: thing 24")
    assert (desks[0].ends, desks[0].acts, desks[0].colours) == (True, True, False)


def test_top_only_looks_and_prints_nothing(record, shown, capsys):
    desks = shown(Ending(Exit.OK), lambda desk: desk.board.emit(told("a thing")))
    assert viewing.view(record, verb="top", acting=False, telling=False) is Exit.OK
    assert capsys.readouterr().out == ""
    assert (desks[0].ends, desks[0].acts) == (False, False)


@pytest.mark.parametrize("fault", [RecordError("record: disk full"), ValueError("odd")])
def test_the_fault_of_the_watch_is_the_error_of_the_verb(record, shown, fault):
    shown(Ending(None), lambda desk: setattr(desk.watch, "fault", fault))
    with pytest.raises(OrchestratorError, match=r"disk full|the watch ended: odd") as raised:
        viewing.view(record, verb="watch", rows=rows(record), acting=True, telling=False)
    assert raised.value.exit_code == (Exit.RECORD if isinstance(fault, RecordError) else Exit.ERROR)


def test_a_view_that_fails_itself_is_no_success(record, shown):
    shown(None)
    assert viewing.view(record, verb="top", acting=False, telling=False) is Exit.ERROR


def test_a_wrong_playbook_ends_the_watch_before_anything_is_shown(record, shown, tmp_path):
    (tmp_path / "bad.yaml").write_text("rules: {nonsense: 1}\n")
    desks = shown(Ending(Exit.OK))
    wrong = rows(record, str(tmp_path / "bad.yaml"))
    with pytest.raises(PlaybookError):
        viewing.view(record, verb="watch", rows=wrong, acting=True, telling=False)
    assert desks == []


def test_what_is_logged_meanwhile_is_written_afterwards(record, shown, caplog):
    seen = []

    def then(desk):
        logging.getLogger("x").error("paramiko says %s", "hello")
        seen.extend(caplog.messages)

    shown(Ending(Exit.OK), then)
    viewing.view(record, verb="top", acting=False, telling=False)
    assert seen == []
    assert caplog.messages == ["paramiko says hello"]


@pytest.mark.parametrize("term", ["vt100", "vt220"])
def test_a_terminal_without_colour_gets_none(monkeypatch, term):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert viewing._has_colours()
    monkeypatch.setenv("TERM", term)
    assert not viewing._has_colours()
    assert os.environ["NO_COLOR"] == "1"


def test_what_is_told_after_the_view_is_printed(capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    after = viewing._Afterwards(Board(SETTINGS.clock), many=False)
    after.emit(told("before"))
    assert capsys.readouterr().out == ""
    after.print_last()
    after.emit(told("after"))
    after.emit(told("a line", "log"))
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == ["before", "after"]


@pytest.mark.parametrize("has_colour", [False, True])
def test_the_last_words_are_folded_at_words_and_none_is_lost(capsys, monkeypatch, has_colour):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(type(SETTINGS), "has_colour", property(lambda _: has_colour))
    after = viewing._Afterwards(Board(SETTINGS.clock), many=False)
    words = " ".join(f"word-{n}" for n in range(40)) + " /" + "p" * 100
    after.emit(told(words))
    after.print_last()
    said = plain(capsys.readouterr().out)
    lines = said.splitlines()
    assert len(lines) > 4
    assert all(len(line) <= 80 for line in lines[:-1])
    assert words in " ".join(said.split())


def test_the_settings_of_messages_are_read_before_the_view(record, shown, monkeypatch, tmp_path):
    (tmp_path / "dflashctl").mkdir()
    (tmp_path / "dflashctl" / "notify.yaml").write_text("urls: 7\n")
    (tmp_path / "dflashctl" / "notify.yaml").chmod(0o600)
    desks = shown(Ending(Exit.OK))
    with pytest.raises(ConfigError):
        viewing.view(record, verb="watch", rows=rows(record), acting=True, telling=True)
    assert desks == []
