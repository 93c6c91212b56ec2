"""A slip at the keyboard is answered with what was meant, and exit code 2."""

from __future__ import annotations

import json
import shlex

import pytest

from orchestrator.cli import app
from orchestrator.errors import Exit


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("statsu", "No such command 'statsu'; did you mean `dflashctl status`?"),
        ("Status", "did you mean `dflashctl status`?"),
        ("relanch b32", "did you mean `dflashctl relaunch`?"),
        ("rules lst", "rules: No such command 'lst'; did you mean `dflashctl rules list`?"),
        ("playbook explane b32", "did you mean `dflashctl playbook explain`?"),
        # What other tools call it, and a verb that is in another place.
        ("kill b32", "did you mean `dflashctl stop`?"),
        ("ls", "did you mean `dflashctl ps` or `dflashctl logs`?"),
        ("scan", "did you mean `dflashctl inventory scan`?"),
        ("show", "did you mean `dflashctl status`, `dflashctl playbook show` or `dflashctl rules show`?"),
        ("status --jsno", "status: No such option: --jsno; did you mean `--json`?"),
        ("logs --folow", "did you mean `--follow`?"),
        ("logs --attempts=2", "did you mean `--attempt`?"),
        ("--inventroy x ps", "No such option: --inventroy; did you mean `--inventory`?"),
        ("cache list --jsn", "cache list: No such option: --jsn; did you mean `--json`?"),
        # An option that is known before the verb only, typed after it.
        ("status --record 'a b'", "it goes before the verb: `dflashctl --record 'a b' status`"),
        ("cache list --rcord x", "it goes before the verb: `dflashctl --record x cache list`"),
        ("ps --no-color --offline", "it goes before the verb: `dflashctl --no-color ps`"),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(words, meant, capsys):
    assert app.run(shlex.split(words)) == Exit.USAGE
    assert meant in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "help_of"),
    [
        (["xyzzy"], "dflashctl"),
        (["cache", "zzz"], "dflashctl cache"),
        (["status", "--qqqq"], "dflashctl status"),
        (["status", "-Z"], "dflashctl status"),
        (["status", "b32", "b33"], "dflashctl status"),
    ],
)
def test_what_is_near_nothing_is_sent_to_the_help_and_guesses_nothing(words, help_of, capsys):
    assert app.run(words) == Exit.USAGE
    text = capsys.readouterr().err
    assert f"see `{help_of} --help`" in text
    assert "did you mean" not in text
    assert len(text.splitlines()) == 1


def test_a_program_gets_the_same_as_an_object(capsys):
    assert app.run(["statsu", "--json"]) == Exit.USAGE
    error = json.loads(capsys.readouterr().out)["error"]
    assert error == {
        "code": "usage_error",
        "message": "No such command 'statsu'",
        "hint": "did you mean `dflashctl status`?",
    }


def test_a_words_own_wildness_stays_on_one_line(capsys):
    assert app.run(["sta\x1b[31m\ntus"]) == Exit.USAGE
    text = capsys.readouterr().err
    assert "\x1b" not in text
    assert len(text.splitlines()) == 1
