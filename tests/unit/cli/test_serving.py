"""serve: what it prints and refuses before it serves anything."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from orchestrator.cli import serving
from orchestrator.cli.app import run
from orchestrator.serve.token import Token


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def refused(capsys, *words: str) -> tuple[int, str]:
    code = run(["serve", *words])
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return code, err


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--listen", "nowhere"), 2, "--listen: 'nowhere': there is no such name or address"),
        (("--listen", "127.0.0.1:x"), 2, "--listen: '127.0.0.1:x' is no address and port"),
        (("--listen", "192.0.2.1:0"), 1, "192.0.2.1:0: that is no address of this machine"),
        (("--root-path", "/a b"), 2, "--root-path: '/a b' is no path"),
        (("--root-path", "https://x"), 2, "--root-path: 'https://x' is no path"),
        (("--ready-fd", "999"), 2, "--ready-fd: 999 is not open"),
    ],
)
def test_a_wrong_word_is_told_with_its_value_before_anything_runs(capsys, words, code, text):
    found, line = refused(capsys, "--listen", "127.0.0.1:0", *words)
    assert (found, text in line) == (code, True), line


def test_without_the_extra_it_says_how_to_install_it(capsys, monkeypatch):
    monkeypatch.setattr(serving, "NEEDED", ("no_such_package", "json"))
    code, line = refused(capsys)
    assert code == 1
    assert line == (
        "dflashctl: serve needs no_such_package, which the base installation leaves out; "
        "pip install 'dflashctl[serve]'\n"
    )


def test_the_unit_starts_it_with_the_same_options(capsys, monkeypatch):
    words = ["serve", "--install-unit", "--listen", "0.0.0.0:8765", "--allow-host", "box.lan"]
    monkeypatch.setattr(sys, "argv", ["/usr/lib/x/__main__.py", *words])
    assert run(words) == 0
    unit = capsys.readouterr().out
    start = f"ExecStart={sys.executable} -m orchestrator serve --listen 0.0.0.0:8765 --allow-host box.lan\n"
    assert start in unit
    assert "--install-unit" not in unit
    assert f"WorkingDirectory={Path.cwd()}\n" in unit
    assert "KillMode=process" in unit, "nothing is on record, so a run of this machine may come"


def test_a_secret_of_the_environment_is_not_in_the_unit_and_that_is_said(capsys, monkeypatch):
    monkeypatch.setenv("DFLASHCTL_NOTIFY_URLS", "ntfys://topic-that-is-secret")
    assert run(["serve", "--install-unit"]) == 0
    out, err = capsys.readouterr()
    assert "topic-that-is-secret" not in out + err
    assert "DFLASHCTL_NOTIFY_URLS" in err


def test_the_dashboard_for_grafana_is_json(capsys):
    assert run(["serve", "--grafana"]) == 0
    assert json.loads(capsys.readouterr().out)["uid"] == "dflashctl"


def test_a_new_token_is_shown_to_a_person_and_not_to_the_journal(capfd, monkeypatch):
    secret = Token("a-token-of-a-test-1234567890", Path("serve.token"), is_new=True)
    serving._tell_ready("http://here", secret, None, is_near=True, as_json=False)
    assert secret.secret in capfd.readouterr().out
    out = os.fstat(1)
    monkeypatch.setenv("JOURNAL_STREAM", f"{out.st_dev}:{out.st_ino}")
    serving._tell_ready("http://here", secret, None, is_near=True, as_json=False)
    told = capfd.readouterr().out
    assert secret.secret not in told
    assert "the token is in serve.token" in told
