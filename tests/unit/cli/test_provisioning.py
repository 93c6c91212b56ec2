"""provision, as it is typed: what is refused at once, this machine made ready, a port that refuses."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from orchestrator.cli import app, provisiontable
from orchestrator.cli.context import SETTINGS
from orchestrator.errors import CommandFailed, Exit
from orchestrator.provision import Outcome, Status
from tests.cli import Cli

if TYPE_CHECKING:
    from pathlib import Path

BOOK = """\
steps:
  - {name: tmux, why: Each run lives in a session of it., check: {program: tmux}, apt: [tmux]}
  - {name: trainer, why: The bundled trainer as it is., trainer: bundled}
"""
PLACE = ("--host", "127.0.0.1", "--port", "9", "--ct", "200")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--host", "10.1.2.6"), "no container is named, and the Proxmox host itself would be changed"),
        (
            (*PLACE, "--index", "https://me:pw12345678@x/simple"),
            "--index https://x/simple: a login in a command line",
        ),
        ((*PLACE, "--torch-index", "https://me:pw12345678@x/whl"), "DFLASHCTL_TORCH_INDEX"),
        ((*PLACE, "--index", "simple"), "--index: 'simple' is no URL"),
        ((*PLACE, "--wheelhouse", "none"), "--wheelhouse none: no wheel is there"),
        ((*PLACE, "--wheelhouse", "a", "--offline"), "leave out --make-wheelhouse and --offline"),
        ((*PLACE, "--file", "none.yaml"), "none.yaml: cannot be read"),
        (("--make-wheelhouse", "w", "--for-python", "2.7"), "no Python 2.7 with pip here"),
    ],
)
def test_a_mistake_is_told_before_anything_is_done(words, says, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DFLASHCTL_INDEX", raising=False)
    code = app.run(["--inventory", str(tmp_path), "provision", *words])
    shown = capsys.readouterr()
    assert (code, shown.out) == (Exit.USAGE, "")
    assert says in shown.err
    assert "pw12345678" not in shown.err


@pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux here")
def test_this_machine_is_made_ready_once(tmp_path: Path):
    (tmp_path / "book.yaml").write_text(BOOK)
    cli = Cli(tmp_path)
    state = tmp_path / "there"
    words = ("provision", "--host", "local", "--state-dir", str(state), "--file", "book.yaml")
    checked = cli.json(*words, "--check", code=Exit.NOT_READY)
    assert (checked["would_change"], [step["status"] for step in checked["steps"]]) == (1, ["ok", "would"])
    assert not state.exists()
    done = cli.run(*words).stdout
    assert [line.split()[:2] for line in done.splitlines()[:2]] == [["ok", "tmux"], ["changed", "trainer"]]
    again = cli.json(*words)
    assert (again["changed"], again["exit_code"]) == (0, 0)


def test_a_host_that_refuses_changes_nothing_and_has_its_own_code(tmp_path: Path):
    done = Cli(tmp_path).run("provision", *PLACE, "--check", code=Exit.UNREACHABLE)
    assert done.stdout == ""
    assert "connection refused" in done.stderr.lower()


def test_what_failed_is_told_with_what_was_said_last(capsys):
    error = CommandFailed("pve/200: tmux: the disk is full", hint="free some space")
    outcome = Outcome(step="tmux", status=Status.FAILED, seen="there is no tmux", does="apt-get", error=error)
    provisiontable.show(outcome)
    provisiontable.tell_error(error, ("E: one", "E: two\x1b[2J"))
    shown = capsys.readouterr()
    assert shown.out.startswith("failed  tmux      there is no tmux: apt-get")
    assert shown.err.splitlines()[:2] == ["    E: one", "    E: two"]
    assert shown.err.splitlines()[2] == "dflashctl: pve/200: tmux: the disk is full; free some space"


def test_a_line_is_as_wide_as_the_terminal(capsys, monkeypatch):
    monkeypatch.setattr(type(SETTINGS.out), "is_terminal", property(lambda _: True))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    long = (
        "/var/lib/dflashctl/venvs/0123456789abcdef: torch 2.13.0, numpy 2.4.6, safetensors 0.8.0, tomli 2.5.0"
    )
    provisiontable.show(Outcome(step="venv", status=Status.OK, seen=long))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(len(line) <= 80 for line in lines)
    assert lines[1].startswith(" " * 18)


def test_a_dry_launch_says_whose_python_it_may_be(tmp_path: Path):
    cli = Cli(tmp_path)
    body = json.loads(cli.run("launch", *PLACE, "--dry-run", "--json").stdout)
    assert body["python_if_provisioned"] == "/var/lib/dflashctl/venv/bin/python"
    named = json.loads(cli.run("launch", *PLACE, "--python", "/own/python", "--dry-run", "--json").stdout)
    assert named["python_if_provisioned"] is None
    assert named["trainer"].startswith("/own/python -m trainer")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--inject", "oom@3"), "--inject oom@3: 'oom' is not a class; allowed: fx-trace"),
        (("--set", "optim.lrr=1"), "optim.lrr"),
        (("--config", "own.toml"), "own.toml: "),
        (("--config", "fsat"), "--config fsat: no such file; give a path, or one of the bundled fast.toml"),
    ],
)
def test_a_dry_launch_refuses_what_a_launch_would(tmp_path: Path, words, why):
    (tmp_path / "own.toml").write_text("total_steps = -1\n")
    done = Cli(tmp_path).run("launch", *PLACE, "--dry-run", *words, code=2)
    assert "the trainer refused its configuration" in done.stderr
    assert why in done.stderr
    assert done.stdout == ""


def test_a_dry_launch_leaves_what_the_container_must_have_to_the_launch(tmp_path: Path):
    cli = Cli(tmp_path)
    flash = ("--config", "tiny", "--set", "compute.attention=flash")
    cli.run("launch", *PLACE, "--dry-run", *flash)
    cli.run("launch", *PLACE, "--dry-run", "--config", "/etc/dflash/own")
    cli.run(
        "launch",
        *PLACE,
        "--dry-run",
        "--set",
        "target.path=/models/qwen3-8b",
        "--set",
        "data.path=/data/text",
    )
