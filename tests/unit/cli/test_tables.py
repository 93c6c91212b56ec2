from __future__ import annotations

import pytest
from rich.cells import cell_len
from rich.console import Console

from orchestrator.cli import tables
from orchestrator.cli.context import Settings

TITLES = ("RUN", "TARGET", "STATE", "SUMMARY")
LONG = "a-run-whose-name-is-of-sixty-characters-and-ends-in-its-seed-0017"
ROWS = [
    [LONG, "pve1.home.arpa/200", "dead", "died at step 1200: out of GPU memory while attention was dense"],
    ["b", "local", "healthy", ""],
]


@pytest.fixture
def printed(monkeypatch, capsys):
    def of(width: int, *, is_terminal: bool = True, rows=ROWS) -> list[str]:
        def console(self: Settings, *, is_err: bool) -> Console:
            return Console(
                width=width, force_terminal=is_terminal, no_color=True, highlight=False, soft_wrap=True
            )

        monkeypatch.setattr(Settings, "_console", console)
        tables.print_table(TITLES, rows, elastic={"SUMMARY": 24, "TARGET": 10, "RUN": 12})
        return str(capsys.readouterr().out).splitlines()

    return of


def test_a_wide_terminal_and_a_pipe_get_every_word(printed):
    wide = printed(200)
    assert wide == printed(40, is_terminal=False)
    assert LONG in wide[1]
    assert wide[1].endswith("while attention was dense")
    assert wide[0].index("STATE") == wide[1].index("dead ")


@pytest.mark.parametrize("width", [40, 50, 60, 80, 100, 120])
def test_no_line_is_wider_than_the_terminal_and_the_state_is_always_there(printed, width):
    lines = printed(width)
    assert len(lines) == 3
    assert max(map(cell_len, lines)) <= width
    assert "STATE" in lines[0]
    assert "dead" in lines[1]
    assert "healthy" in lines[2]


def test_a_long_name_keeps_its_begin_and_its_end_and_a_sentence_its_begin(printed):
    line = printed(80)[1]
    name = line.split()[0]
    assert name.startswith("a-run-w")
    assert "…" in name
    assert name.endswith("-0017")
    assert printed(110)[1].split("dead")[1].strip().startswith("died at step 1200")


def test_what_a_column_that_was_left_out_frees_goes_to_the_others(printed):
    lines = printed(50)
    assert "SUMMARY" not in lines[0]
    assert cell_len(lines[1]) > 42


def test_wide_characters_count_double(printed):
    lines = printed(50, rows=[["名" * 30, "目" * 20, "dead", ""], ["b", "c", "healthy", ""]])
    assert max(map(cell_len, lines)) <= 50
    assert lines[1].index("dead") != -1


def test_no_row_at_all(printed):
    assert printed(80, rows=[]) == ["RUN  TARGET  STATE  SUMMARY"]
