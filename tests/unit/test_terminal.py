from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.terminal import MAX_COLOURS, clean, one_line, plain

PIECES = [
    *("\x1b", "\x1b[", "\x1b]", "\x1b]52;c;", "\x1b]8;;http://x", "\x1bP", "\x1b\\", "\x9b", "\x9d", "\x07"),
    *("\x1b[2J", "\x1b[31m", "\x1b[0m", "\x1b[8m", "\x1b[?1049h", "\x1b[38;5;8m", "[31m", "31", ";", "m"),
    *("\r", "\n", "\r\n", "\b", "\x00", "\u202e", "\u2066", "\u2028", "\x18", "x" * 50, "\x1b(0"),
]
HOSTILE = st.lists(
    st.one_of(st.text(max_size=20), st.sampled_from(PIECES), st.characters(max_codepoint=0x9F)), max_size=40
).map("".join)
SGR = re.compile(r"\x1b\[[0-9;:]*m")


def is_safe(text: str) -> bool:
    """No control character but newline and tab, and none that turns the direction of text."""
    bidi = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
    return not any(
        (unicodedata.category(c) in {"Cc", "Zl", "Zp", "Cs"} and c not in "\n\t")
        or unicodedata.bidirectional(c) in bidi
        for c in text
    )


@given(HOSTILE)
def test_clean_leaves_no_control_but_colours(text: str) -> None:
    assert is_safe(SGR.sub("", clean(text)))


@given(HOSTILE)
def test_plain_leaves_no_control_at_all(text: str) -> None:
    assert is_safe(plain(text))


@given(HOSTILE, st.integers(0, 120))
def test_cleaning_twice_changes_nothing(text: str, limit: int) -> None:
    once = clean(text, limit)
    assert clean(once, limit) == once
    assert plain(once, limit) == plain(text, limit)


@given(HOSTILE, st.integers(0, 120))
def test_no_line_is_longer_than_the_limit(text: str, limit: int) -> None:
    for line in clean(text, limit).split("\n"):
        assert len(SGR.sub("", line)) <= max(limit, 40)
    assert len(one_line(text, limit)) <= max(limit, 40)
    assert "\n" not in one_line(text, limit)


@given(HOSTILE)
def test_no_line_colours_the_next(text: str) -> None:
    for line in clean(text).split("\n"):
        colours = SGR.findall(line)
        assert not colours or colours[-1] in {"\x1b[0m", "\x1b[m"}


@given(st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"]), max_size=200))
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert clean(text) == text == plain(text)


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("a\x1b[2Jb", "ab"),
        ("a\x1b[?1049hb", "ab"),
        ("a\x1b[>4;1mb", "ab"),  # ends in m, but sets xterm's keyboard
        ("a\x1b]52;c;ZXZpbA==\x07b", "ab"),
        ("a\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\b", "alinkb"),
        ("a\x1b]0;title\x9cb", "ab"),
        ("a\x1bP1$r0m\x1b\\b", "ab"),
        ("a\x9b31mb\x9d0;t\x07c", "abc"),
        ("a\x1bcb\x1b(0c", "abc"),
        ("pass\b\b\b\bfail", "passfail"),
        ("\u202eevil\u2066x\u2069", "evilx"),
        ("a\x1b[8mhidden\x1b[0m", "ahidden\x1b[0m"),
        ("\ud800", "\ufffd"),
        ("10%\r20%\r\nend", "10%\n20%\nend"),
        ("\x1b[38;5;8mgrey\x1b[0m", "\x1b[38;5;8mgrey\x1b[0m"),
        ("\x1b[1;31mred", "\x1b[1;31mred\x1b[0m"),
        ("unended \x1b]0;still shown", "unended 0;still shown"),
        ("\x1b\x1b[2J[31mx", "[31mx"),  # what is removed cannot join into a new sequence
    ],
)
def test_what_a_terminal_would_obey_is_removed_and_the_text_stays(hostile: str, shown: str) -> None:
    assert clean(hostile) == shown


def test_a_cut_line_says_how_much_is_missing() -> None:
    cut = clean("x" * 100, 60)
    assert cut == "x" * 40 + " ...[60 more]"
    assert clean("\x1b[31m" + "x" * 100, 60) == "\x1b[31m" + "x" * 40 + "\x1b[0m ...[60 more]"
    assert clean("x" * 60, 60) == "x" * 60


def test_a_million_colours_do_not_make_a_line_long() -> None:
    assert len(clean("\x1b[31m" * 1_000_000 + "x")) <= MAX_COLOURS * 5 + 1


@pytest.mark.parametrize("part", ["\x1b]", "\x1b[", "\x1bP", "\x1b[0", "\x1b[ ", "\x9d"])
def test_unended_sequences_take_linear_time(part: str) -> None:
    # Quadratic work on 400,000 characters would take minutes; the test runner's patience is the limit.
    assert is_safe(plain(part * (400_000 // len(part))))
