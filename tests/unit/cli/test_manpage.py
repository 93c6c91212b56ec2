"""The manual's pages: one for each verb, all that `--help` says, and roff that a formatter takes."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
import typer

from orchestrator.cli import app
from orchestrator.cli.app import EPILOG
from orchestrator.cli.manpage import _text, pages
from orchestrator.cli.settings import VARIABLES
from orchestrator.errors import Exit

if TYPE_CHECKING:
    from pathlib import Path

PAGES = pages(typer.main.get_command(app.app), "dflashctl", "1.2.3", EPILOG)


def read(page: str) -> str:
    """A page's words without roff's own, in one line."""
    text = re.sub(r"\\f[BIR]|\\&", "", PAGES[page])
    for mark, char in (
        ("\\-", "-"),
        ("\\(aq", "'"),
        ("\\(dq", '"'),
        ("\\(ti", "~"),
        ("\\(ha", "^"),
        ("\\e", "\\"),
    ):
        text = text.replace(mark, char)
    return " ".join(text.split())


def test_every_verb_has_a_page_and_the_programs_own_names_it():
    assert {"dflashctl.1", "dflashctl-logs.1", "dflashctl-playbook-show.1", "dflashctl-man.1"} <= PAGES.keys()
    for page in PAGES.keys() - {"dflashctl.1"}:
        assert f"See {page.removesuffix('.1')}(1)." in read("dflashctl.1")


def test_a_page_says_all_that_the_help_says():
    page = read("dflashctl-logs.1")
    for option in ("--follow, -f", "--since SINCE", "--rank RANK", "--grep, -g GREP", "--raw"):
        assert option in page
    assert 'dflashctl logs b32 --previous --grep "Error|OutOfMemory"' in page
    assert "dflashctl logs [OPTIONS] [RUN]" in page
    assert "--set SETTINGS ..." in read("dflashctl-relaunch.1")


def test_codes_and_variables_are_in_the_programs_page():
    page = read("dflashctl.1")
    for code in Exit:
        assert f".TP {code.value} " in page
    assert "4 unreachable (says nothing about the run)" in page
    for variable in VARIABLES:
        assert re.search(rf"\.TP {variable} [A-Z]", page), f"{variable} is not told"
    assert "Environment: DFLASHCTL_RECORD." in page


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (".start", "\\&.start"),
        ("'quoted", "\\(aqquoted"),
        ("a\\b `--x` é", "a\\eb \\fB\\-\\-x\\fR \\[u00E9]"),
        ("bell\x07", "bell"),
    ],
)
def test_what_means_something_to_roff_is_escaped(text, shown):
    assert _text(text) == shown


@pytest.mark.parametrize(
    "formatter",
    [("groff", "-man", "-Tascii", "-ww", "-z"), ("mandoc", "-Tlint", "-Wwarning")],
    ids=["groff", "mandoc"],
)
def test_a_formatter_takes_every_page_without_a_word(formatter, tmp_path: Path):
    if shutil.which(formatter[0]) is None:
        pytest.skip(f"{formatter[0]} is not on this machine")
    assert app.run(["man", "--out", str(tmp_path / "man1")]) == Exit.OK
    files = sorted((tmp_path / "man1").iterdir())
    assert len(files) == len(PAGES)
    done = subprocess.run([*formatter, *files], capture_output=True, text=True, timeout=240, check=False)
    said = [line for line in (done.stdout + done.stderr).splitlines() if "missing date" not in line]
    assert said == []  # the same source gives the same page, so that it has no date


def test_one_page_goes_to_standard_output_and_one_that_is_not_there_is_told(capsys):
    assert app.run(["man", "playbook", "show"]) == Exit.OK
    assert capsys.readouterr().out.startswith('.TH "DFLASHCTL\\-PLAYBOOK\\-SHOW" "1"')
    assert app.run(["man", "nosuch"]) == Exit.NOT_FOUND
    assert "no page for 'nosuch'" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_told(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert app.run(["man", "--out", str(tmp_path / "file" / "man1")]) == Exit.ERROR
    assert "cannot be written: Not a directory" in capsys.readouterr().err
