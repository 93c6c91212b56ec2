"""config show: what is in force, and whether it is told truly where it comes from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.cli import app
from orchestrator.cli.context import SETTINGS
from orchestrator.cli.settings import NOT_SHOWN
from orchestrator.errors import Exit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Show = Callable[..., tuple[int, dict[str, tuple[str | None, str]]]]

INVENTORY = """\
hosts:
  pve:
    address: 10.1.2.6
containers:
  trainer: {host: pve, ct: 200, gpus: [0, 1]}
"""
PLAYBOOK = """\
extends: default
backoff: [1s, 2s]
limits:
  silence: 30m
"""


@pytest.fixture
def show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Show:
    """Run it in a folder of its own; the exit code, and each setting's value and origin."""
    monkeypatch.chdir(tmp_path)
    for name in (
        "DFLASHCTL_RECORD",
        "DFLASHCTL_INVENTORY",
        "NO_COLOR",
        "FORCE_COLOR",
        "TERM",
        "XDG_CONFIG_HOME",
        "XDG_STATE_HOME",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for key in ("inventory", "record", "verbose", "no_color"):
        monkeypatch.setattr(SETTINGS, key, getattr(SETTINGS, key))

    def run(*words: str, after: tuple[str, ...] = ()) -> tuple[int, dict[str, tuple[str | None, str]]]:
        code = app.run([*words, "config", "show", "--json", *after])
        body: dict[str, Any] = json.loads(capsys.readouterr().out)
        return code, {each["name"]: (each["value"], origin(each["origin"])) for each in body["settings"]}

    return run


def origin(told: dict[str, Any]) -> str:
    return ":".join(str(part) for part in told.values() if part is not None)


def test_with_nothing_given_all_is_default(show, tmp_path):
    code, found = show()
    assert code == Exit.OK
    assert found["record"] == (str(tmp_path / ".local/state/dflashctl/record.sqlite3"), "default")
    assert found["playbook.jitter"] == ("0.1", "default")
    assert found["playbook.rules.oom_cuda"][1] == "default"
    assert found["environment.NO_COLOR"] == (None, "default")
    assert found["notify"] == (None, "default")


@pytest.mark.parametrize(
    ("words", "env", "record"),
    [
        ((), {"XDG_STATE_HOME": "/s"}, ("/s/dflashctl/record.sqlite3", "environment:XDG_STATE_HOME")),
        ((), {"XDG_STATE_HOME": "/s", "DFLASHCTL_RECORD": "/e"}, ("/e", "environment:DFLASHCTL_RECORD")),
        (("--record", "/o"), {"DFLASHCTL_RECORD": "/e"}, ("/o", "option:--record")),
    ],
)
def test_the_record_is_by_option_before_environment_before_default(show, monkeypatch, words, env, record):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert show(*words)[1]["record"] == record


def test_files_are_told_by_line_and_what_they_leave_out_as_default(show, tmp_path):
    folder = tmp_path / "lab"
    folder.mkdir()
    (folder / "a.yaml").write_text(INVENTORY)
    notify = tmp_path / ".config" / "dflashctl" / "notify.yaml"
    notify.parent.mkdir(parents=True)
    notify.write_text("urls: [ntfy://host/topic]\n")
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "playbooks" / "default.yaml").write_text(PLAYBOOK)
    code, found = show("--inventory", str(folder), "--no-color")
    assert code == Exit.OK
    assert found["inventory"] == (str(folder), "option:--inventory")
    assert found["hosts.pve.address"] == ("10.1.2.6", f"file:{folder}/a.yaml:3")
    assert found["containers.trainer.gpus"] == ("0, 1", f"file:{folder}/a.yaml:5")
    assert found["containers.trainer.python"] == ("provisioned, else python3", "default")
    assert found["containers.trainer.state_dir"] == ("/var/lib/dflashctl", "default")
    assert found["notify"] == (str(notify), "default")
    assert "ntfy" not in str(found)
    assert found["playbook"] == ("playbooks/default.yaml", "default")
    assert found["playbook.backoff"] == ("1s, 2s", "file:playbooks/default.yaml:2")
    assert found["playbook.limits.silence"] == ("30m", "file:playbooks/default.yaml:4")
    assert found["playbook.grace"][1] == "default"
    assert found["colour"] == ("off", "option:--no-color")


def test_secrets_are_starred_and_a_receivers_address_is_not_shown(show, monkeypatch):
    monkeypatch.setenv("DFLASHCTL_NOTIFY_URLS", "ntfys://someone:pass@host/topic")
    monkeypatch.setenv("DFLASHCTL_API_TOKEN", "s3cret-of-mine")
    monkeypatch.setenv("TZ", "s3cret-of-mine")
    _, found = show()
    assert found["environment.DFLASHCTL_NOTIFY_URLS"][0] == NOT_SHOWN
    assert found["environment.DFLASHCTL_API_TOKEN"][0] == "*" * 14
    assert "s3cret" not in str(found)


def test_a_broken_file_is_told_and_the_rest_is_shown_all_the_same(tmp_path, show, capsys):
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "a.yaml").write_text("hosts: [")
    code, found = show(after=("--playbook", "nope.yaml"))
    assert code == Exit.USAGE
    assert "record" in found
    assert not any(name.startswith(("hosts", "playbook")) for name in found)
    assert app.run(["config", "show"]) == Exit.USAGE
    assert "inventory/a.yaml:1: not valid YAML" in capsys.readouterr().err


def test_a_person_sees_where_each_comes_from_only_when_asked(show, capsys):
    assert app.run(["--record", "/o", "config", "show"]) == Exit.OK
    assert "record = /o\n" in capsys.readouterr().out
    assert app.run(["--record", "/o", "config", "show", "--origin"]) == Exit.OK
    assert "record = /o  (option --record)\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "env", "colour"),
    [
        ((), {}, ("off", "default")),  # standard output is no terminal here
        ((), {"FORCE_COLOR": "1", "TERM": "xterm"}, ("on", "environment:FORCE_COLOR")),
        ((), {"FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm"}, ("off", "environment:NO_COLOR")),
        (("--no-color",), {"FORCE_COLOR": "1", "TERM": "xterm"}, ("off", "option:--no-color")),
        ((), {"TERM": "dumb"}, ("off", "environment:TERM")),
    ],
)
def test_colour_is_for_a_terminal_that_has_some_and_for_nobody_who_wants_none(
    show, monkeypatch, words, env, colour
):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert show(*words)[1]["colour"] == colour
