"""A Tab as the shells press it: hosts, containers and runs, from files alone, at once, and never an error."""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.cli import app
from orchestrator.record import Record
from orchestrator.types.failure import RunState

if TYPE_CHECKING:
    from collections.abc import Callable

    Tab = Callable[..., list[str]]

ROOT = Path(__file__).resolve().parents[3]
INVENTORY = """\
hosts:
  pve: {address: 10.1.2.6}
  other: {address: 10.1.2.7}
containers:
  trainer: {host: pve, ct: 200}
  second: {host: other, ct: 201}
  here: {host: local}
"""
RUNS = (("b32", "10.1.2.6/200"), ("b64", "10.1.2.7/201"), ("a-b", "local"), ("far", "root@10.1.2.9:2222/300"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an inventory and a record of four runs, in force."""
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "a.yaml").write_text(INVENTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DFLASHCTL_RECORD", str(tmp_path / "r.sqlite3"))
    monkeypatch.delenv("DFLASHCTL_INVENTORY", raising=False)
    with Record.open(tmp_path / "r.sqlite3") as record:
        for name, key in RUNS:
            record.save_run(name, {}, key, {}, datetime(2026, 11, 29, tzinfo=timezone.utc))
    return tmp_path


@pytest.fixture
def tab(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tab:
    """Ask as a shell does; what it is given, without the words that zsh and fish show beside it."""

    def press(line: str, shell: str = "bash") -> list[str]:
        words = line.split(" ")
        asks = {
            "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
            "zsh": {"_TYPER_COMPLETE_ARGS": line},
            "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        }[shell]
        with monkeypatch.context() as env:
            env.setenv("_DFLASHCTL_COMPLETE", f"complete_{shell}")
            for name, value in asks.items():
                env.setenv(name, value)
            with pytest.raises(SystemExit):
                app.run([])
        shown = capsys.readouterr()
        assert shown.err == ""
        return [line for line in shown.out.splitlines() if line]

    return press


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("dflashctl status ", {"b32", "b64", "a-b", "far"}),
        ("dflashctl logs b", {"b32", "b64"}),
        ("dflashctl playbook explain f", {"far"}),
        ("dflashctl status --host 10.1.2.7 ", {"b64"}),
        ("dflashctl status --ct 200 ", {"b32"}),
        ("dflashctl status --host ", {"pve", "other", "local", "root@10.1.2.9:2222"}),
        ("dflashctl launch --host p", {"pve"}),
        ("dflashctl launch --ct ", {"200", "201", "300"}),
        ("dflashctl launch --host other --ct ", {"201"}),
        ("dflashctl launch --host 10.1.2.6 --ct ", {"200"}),
        ("dflashctl launch --container ", {"trainer", "second", "here"}),
        ("dflashctl inventory check t", {"trainer"}),
        ("dflashctl status x", set()),
    ],
)
def test_names_are_those_of_the_inventory_and_the_record(home, tab, line, found):
    assert set(tab(line)) == found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_is_given_them_in_its_own_form(home, tab, shell):
    text = "\n".join(tab("dflashctl logs b", shell))
    assert "b32" in text
    assert "b64" in text
    assert "far" not in text
    assert ("at 10.1.2.6/200" in text) == (shell != "bash")


def test_the_options_before_the_verb_say_which_files_are_meant(home, tab, tmp_path):
    with Record.open(tmp_path / "other.sqlite3") as record:
        record.save_run("mine", {}, "local", {}, datetime(2026, 11, 29, tzinfo=timezone.utc))
    assert tab(f"dflashctl --record {tmp_path}/other.sqlite3 status ") == ["mine"]
    assert tab(f"dflashctl --inventory {tmp_path}/none launch --container ") == []


def test_a_removed_run_is_not_offered(home, tab):
    with Record.open(home / "r.sqlite3") as record:
        (row,) = [row for row in record.runs() if row.name == "b32"]
        record.remove_run(row.id, datetime(2026, 11, 30, tzinfo=timezone.utc))
    assert "b32" not in tab("dflashctl status ")


def damaged(home: Path, damage: str) -> None:
    """Damage the record or the inventory."""
    record, inventory = home / "r.sqlite3", home / "inventory" / "a.yaml"
    texts = {
        "no yaml": b"hosts: [",
        "other yaml": "hosts: {pve: 3, '\x85': {}}\ncontainers: [1]\n---\nmore".encode(),
        "binary": bytes(range(256)),
    }
    if damage in texts:
        inventory.write_bytes(texts[damage])
    elif damage == "no database":
        record.write_bytes(b"not a database" * 100)
    else:
        record.unlink()
        if damage == "a folder":
            record.mkdir()
        if damage == "another database":
            with sqlite3.connect(record) as other:
                other.execute("CREATE TABLE runs (x)")


@pytest.mark.parametrize(
    "damage",
    ["absent", "no database", "another database", "a folder", "no yaml", "other yaml", "binary"],
)
def test_what_cannot_be_read_completes_to_nothing_without_an_error(home, tab, damage):
    damaged(home, damage)
    is_record = damage not in ("no yaml", "other yaml", "binary")
    assert (tab("dflashctl status ") == []) == is_record
    assert ("pve" in tab("dflashctl status --host ")) == is_record
    assert (tab("dflashctl launch --container ") == []) != is_record
    if damage == "absent":
        assert not (home / "r.sqlite3").exists(), "a Tab must not make a record"


def test_no_host_is_asked(home, tab, monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("a Tab must not reach the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    for line in ("dflashctl status ", "dflashctl launch --host ", "dflashctl launch --host pve --ct "):
        assert tab(line)


def test_names_that_a_shell_would_read_as_more_are_left_out(home, tab):
    (home / "inventory" / "a.yaml").write_text("hosts: {'$(reboot)': {address: x}, 'a b': {}, fine: {}}\n")
    assert "fine" in tab("dflashctl launch --host ")
    assert not any("reboot" in each or " " in each for each in tab("dflashctl launch --host "))


def test_it_takes_no_time_with_many_runs_and_hosts(home, tab):
    hosts = "".join(f"  h{n}: {{address: 10.0.{n // 256}.{n % 256}}}\n" for n in range(500))
    boxes = "".join(f"  c{n}: {{host: h{n}, ct: {n + 100}}}\n" for n in range(500))
    (home / "inventory" / "a.yaml").write_text(f"hosts:\n{hosts}containers:\n{boxes}")
    with sqlite3.connect(home / "r.sqlite3") as record:
        columns = "name, target_key, target, spec, created_at, state, gpu_interval_s"
        rows = [
            (f"r{n}", "local", "{}", "{}", f"2026-11-29 00:00:{n % 60:02}", RunState.NEW.value, 1.0)
            for n in range(2000)
        ]
        record.executemany(f"INSERT INTO runs ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    tab("dflashctl status ")
    began = time.process_time()  # this process's own, as the machine may be busy
    assert len(tab("dflashctl status ")) == 500
    assert len(tab("dflashctl launch --host h ")) >= 0
    assert time.process_time() - began < 0.4


def test_a_tab_loads_none_of_what_a_verb_needs(home):
    code = (
        "import sys; from orchestrator.cli.app import run\n"
        "try: run([])\nexcept SystemExit: pass\n"
        "import json; sys.stderr.write(json.dumps(sorted(sys.modules)))"
    )
    env = {
        "_DFLASHCTL_COMPLETE": "complete_bash", "COMP_WORDS": "dflashctl status b", "COMP_CWORD": "2",
        "DFLASHCTL_RECORD": str(home / "r.sqlite3"), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], cwd=home, env=env, capture_output=True, check=True)
    assert set(done.stdout.split()) == {b"b32", b"b64"}
    loaded = set(json.loads(done.stderr))
    assert not loaded & {"sqlalchemy", "paramiko", "orchestrator.inventory", "orchestrator.record"}
