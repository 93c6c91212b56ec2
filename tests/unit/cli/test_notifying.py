"""notify test and show: what a person sees, and what nobody sees."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest

from orchestrator.cli import app
from orchestrator.cli.context import SETTINGS
from orchestrator.cli.notifying import messaging
from orchestrator.errors import Exit
from orchestrator.record import Record
from orchestrator.watch.events import WatchEvent
from tests.builders import NOW
from tests.unit.watch.bench import SPEC

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from orchestrator.record import RunRow

SECRET = "T0pSecretWord"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("DFLASHCTL_NOTIFY_URLS", raising=False)
    monkeypatch.delenv("DFLASHCTL_DEADMAN_URL", raising=False)
    (tmp_path / "dflashctl").mkdir()
    return tmp_path


@pytest.fixture
def port() -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(403 if "refuse" in self.path else 200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def write(home: Path, text: str) -> None:
    path = home / "dflashctl" / "notify.yaml"
    path.write_text(text)
    path.chmod(0o600)


def test_a_test_says_of_each_target_whether_it_went(home, port, capfd):
    write(
        home,
        f"urls:\n  - json://127.0.0.1:{port}/{SECRET}\n  - json://127.0.0.1:{port}/refuse/{SECRET}\n"
        "quiet: {from: 0:00, to: 23:59}\n",
    )
    assert app.run(["notify", "test"]) == Exit.ERROR
    out, err = capfd.readouterr()
    first, second = out.splitlines()
    assert first == "+ JSON (notify.yaml:2): sent"
    assert second.startswith("x JSON (notify.yaml:3): not sent: ")
    assert "403" in second
    assert SECRET not in out + err


def test_a_test_that_went_everywhere_is_ok_and_tells_a_program_so(home, port, capfd):
    write(home, f"urls: [json://127.0.0.1:{port}/{SECRET}]\n")
    assert app.run(["notify", "test", "--json"]) == Exit.OK
    out, _ = capfd.readouterr()
    assert json.loads(out)["targets"] == [
        {"service": "JSON", "origin": "notify.yaml:1", "sent": True, "problem": None}
    ]


def test_very_verbose_shows_no_address_either(home, port):
    """In a process of its own: what a library logs goes where the root logger does."""
    import os
    import subprocess
    import sys

    write(home, f"urls: [json://127.0.0.1:{port}/{SECRET}, json://127.0.0.1:{port}/refuse/{SECRET}]\n")
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "-vv", "notify", "test"],
        env={**os.environ, "XDG_CONFIG_HOME": str(home)},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == Exit.ERROR, done.stderr
    assert SECRET not in done.stdout + done.stderr


def test_a_test_with_nobody_to_tell_says_where_to_name_them(capfd):
    assert app.run(["notify", "test"]) == Exit.USAGE
    _, err = capfd.readouterr()
    assert "DFLASHCTL_NOTIFY_URLS" in err
    assert "notify.yaml" in err


def test_show_names_the_places_and_never_an_address(home, capfd):
    write(
        home,
        f"urls: [json://127.0.0.1/{SECRET}]\ndeadman_url: https://127.0.0.1/{SECRET}\n"
        "quiet: {from: 22:00, to: 7:00}\nseverity: {finished: off}\n",
    )
    for words in (["notify", "show"], ["notify", "show", "--json"]):
        assert app.run(words) == Exit.OK
        out, err = capfd.readouterr()
        assert "notify.yaml:1" in out
        assert "22:00" in out
        assert SECRET not in out + err


@pytest.mark.parametrize(
    "words",
    [["notify", "show"], ["notify", "test"], ["launch", "--host", "local", "--watch"], ["relaunch", "-w"]],
)
def test_settings_that_others_may_read_are_refused_before_anything_is_begun(words, home, capfd):
    write(home, f"urls: [json://127.0.0.1/{SECRET}]\n")
    (home / "dflashctl" / "notify.yaml").chmod(0o644)
    assert app.run(words) == Exit.USAGE
    assert "chmod 600" in capfd.readouterr().err


class View:
    def __init__(self) -> None:
        self.events: list[WatchEvent] = []

    def emit(self, event: WatchEvent) -> None:
        self.events.append(event)

    def refresh(self) -> None:
        pass


@pytest.fixture
def row(tmp_path, monkeypatch) -> Iterator[RunRow]:
    monkeypatch.setattr(SETTINGS, "record", tmp_path / "r.sqlite3")
    with Record.open(SETTINGS.record) as record:
        yield record.save_run("dflash", {"ct": 200}, "pve/200", SPEC, NOW)


def called() -> WatchEvent:
    return WatchEvent(
        kind="decision",
        at=NOW,
        run="dflash",
        target="pve/200",
        attempt=1,
        text="call: look",
        detail={"kind": "call"},
    )


def test_a_watch_with_nobody_to_tell_has_its_view_alone(row):
    with messaging(View(), [row]) as sink:
        assert sink is None


def test_a_watch_that_is_to_send_nothing_reads_no_settings(home, row):
    write(home, "nonsense: 1\n")
    with messaging(View(), [row], wanted=False) as sink:
        assert sink is None


def test_a_watch_sends_and_keeps_what_was_told_beside_its_record(home, port, row):
    write(home, f"urls: [json://127.0.0.1:{port}/{SECRET}]\n")
    view = View()
    with messaging(view, [row]) as sink:
        assert sink is not None
        sink.emit(called())
    assert [event.kind for event in view.events][:1] == ["decision"]
    kept = home / "r.sqlite3.told"
    assert json.loads(kept.read_text())[:4] == ["pve/200", "dflash", 1, "needs_person"]
    assert kept.stat().st_mode & 0o077 == 0
    assert SECRET not in kept.read_text()


def test_without_apprise_the_error_names_the_extra(home, capfd, monkeypatch):
    write(home, f"urls: [json://127.0.0.1/{SECRET}]\n")
    monkeypatch.setitem(__import__("sys").modules, "apprise", None)
    assert app.run(["notify", "test"]) == Exit.USAGE
    assert 'pip install "dflashctl[notify]"' in capfd.readouterr().err
