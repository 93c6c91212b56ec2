"""The command line as an interface: verbs have examples, codes are documented, it starts quickly."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.text import Text

from orchestrator.cli.app import EPILOG, app
from orchestrator.errors import Exit, OrchestratorError

ROOT = Path(__file__).resolve().parents[2]
HEAVY = (
    "sqlalchemy",
    "alembic",
    "paramiko",
    "fabric",
    "invoke",
    "orchestrator.inventory",
    "yaml",
    "rich.live",
    "textual",
    "matplotlib",
    "jinja2",
    "fastapi",
    "uvicorn",
)


def commands(group: Any, path: str = "dflashctl") -> dict[str, Any]:
    """Return every verb by the words that are typed."""
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        words = f"{path} {name}"
        found.update(commands(command, words) if hasattr(command, "commands") else {words: command})
    return found


COMMANDS = commands(typer.main.get_command(app))


def test_the_verbs_are_these():
    assert {words.removeprefix("dflashctl ") for words in COMMANDS} == {
        "launch", "provision", "watch", "top", "serve", "status", "ps", "logs", "attach", "stop", "relaunch",
        "explain", "events", "plot", "report", "stacks", "doctor",
        "diff", "eval", "export", "replay", "record",
        "rules list", "rules show", "rules test", "cache list", "cache save", "cache restore", "cache verify",
        "notify test", "notify show",
        "playbook show", "playbook check", "playbook explain",
        "rm", "prune", "demo", "inventory list", "inventory check", "inventory scan",
        "config show", "man",
    }  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS)
def test_every_verb_has_examples_that_are_of_it_and_whose_options_exist(words):
    command = COMMANDS[words]
    head, _, examples = (command.help or "").partition("Examples:")
    assert head.strip().endswith(".")
    lines = [line.strip() for line in examples.splitlines() if line.strip()]
    assert lines
    known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
    for line in lines:
        mine = re.split(r" -- | \| | > ", line)[0]
        assert words.removeprefix("dflashctl ") in mine
        after = mine.split(words.rsplit(" ", 1)[1], 1)[1].split()
        assert {word for word in after if word.startswith("-")} <= known, line


@pytest.mark.parametrize("words", COMMANDS)
def test_the_help_shows_each_example_on_a_line_of_its_own_in_80_columns(words, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)
    app([*words.split()[1:], "--help"], prog_name="dflashctl", standalone_mode=False)
    shown = {line.strip() for line in capsys.readouterr().out.splitlines()}
    examples = (COMMANDS[words].help or "").partition("Examples:")[2]
    assert {line.strip() for line in examples.splitlines()} <= shown


@pytest.mark.parametrize("words", COMMANDS)
def test_every_option_is_documented(words):
    for param in COMMANDS[words].params:
        assert param.help, f"{words}: {param.name} has no help"


@pytest.mark.parametrize("words", COMMANDS)
def test_no_word_of_an_options_help_is_taken_for_a_style(words):
    for param in COMMANDS[words].params:
        assert Text.from_markup(param.help).plain == param.help, f"{words}: {param.name}"


def test_the_options_before_the_verb_are_documented():
    for param in typer.main.get_command(app).params:
        is_typers_own = param.name in ("install_completion", "show_completion", "version")
        assert is_typers_own or getattr(param, "help", None), param.name


@pytest.mark.parametrize("code", Exit)
def test_every_exit_code_is_in_the_help(code):
    assert re.search(rf"\b{code.value} \w", EPILOG), f"{code.value} is not in `dflashctl --help`"


def test_every_error_of_ours_has_a_code_that_is_documented():
    def below(kind: type[OrchestratorError]) -> set[type[OrchestratorError]]:
        return {kind}.union(*(below(each) for each in kind.__subclasses__()))

    for kind in below(OrchestratorError):
        assert isinstance(kind.exit_code, Exit)
        assert kind.exit_code not in (Exit.OK, Exit.INTERRUPTED)


@pytest.mark.parametrize("words", [("--version",), ("--help",), ("launch", "--help"), ("--show-completion",)])
def test_what_needs_nothing_imports_nothing_heavy(words):
    code = (
        "import sys; from orchestrator.cli.app import run\n"
        f"try: run({list(words)!r})\nexcept SystemExit: pass\n"
        f"sys.stderr.write(' '.join(name for name in {HEAVY!r} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_offered_and_completes_a_verb(shell):
    env = {"PATH": "/usr/bin:/bin", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    script = subprocess.run(
        [sys.executable, "-m", "orchestrator", "--show-completion", shell],
        cwd=ROOT, env=env, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "_DFLASHCTL_COMPLETE" in script


def test_the_shell_completes_a_verb():
    env = {"_DFLASHCTL_COMPLETE": "complete_bash", "COMP_WORDS": "dflashctl rel", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator"], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["relaunch"]
