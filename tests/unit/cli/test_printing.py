"""What is printed is what was read: no text of a log or a playbook is a style, a picture or an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.cli import app
from orchestrator.errors import Exit

if TYPE_CHECKING:
    from pathlib import Path

WORDS = "train.py:100: cannot read [/srv/data] of [rank1] :bug: [red]x[/red]"
LOG = f"""step 5 loss 1.0
Traceback (most recent call last):
  File "t.py", line 3, in <module>
OSError: {WORDS}
"""


def test_a_line_of_a_log_is_printed_as_it_stands_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "train.log"
    path.write_text(LOG)
    for words in (["replay", "--log", str(path)], ["rules", "test", str(path)]):
        assert app.run([*words, "--exit-status", "1"]) == Exit.OK
        assert WORDS in capsys.readouterr().out, words


@pytest.mark.parametrize("words", [["playbook", "show"], ["playbook", "show", "hang"], ["rules", "list"]])
def test_a_sentence_of_a_playbook_is_no_markup(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "250")
    path = tmp_path / "mine.yaml"
    said = "See [/srv/notes] for [rank0] and a.py:100: too."
    own = f'custom: [{{name: own, regex: x, label: "{said}", act: call, why: "{said}"}}]\n'
    path.write_text(f'extends: default\nrules: {{hang: {{act: call, why: "{said}"}}}}\n{own}')
    assert app.run([*words, "--playbook", str(path)]) == Exit.OK
    assert said in capsys.readouterr().out
