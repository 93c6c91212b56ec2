"""Expressions of a user: what Python's engine says, and never more time than the line is long."""

from __future__ import annotations

import re
import sys
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.pattern import MAX_TABLE, Pattern, PatternError

ATOMS = st.sampled_from(
    ["a", "b", "A", "_", " ", ".", r"\d", r"\w", r"\s", r"\W", r"\D", r"\S", r"\.", r"\x41", "[ab]", "[^a]",
     r"[\d_-]", "[a-c]", "[]a]", r"\b", r"\B", "^", "$", "{", "}", "é"]
)  # fmt: skip
REPEATS = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,}", "{,2}", "*?", "+?", "??"])


def _repeated(parts: tuple[str, str]) -> str:
    part, count = parts
    return part if part in ("^", "$", r"\b", r"\B") else part + count


PIECES = st.tuples(ATOMS, REPEATS).map(_repeated)
TREES = st.recursive(
    st.lists(PIECES, max_size=4).map("".join),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, REPEATS).map(lambda two: f"({two[0]}){two[1]}"),
        st.tuples(inner, inner).map("".join),
    ),
    max_leaves=5,
)
# Before Python 3.14 its engine held that an empty line has no place that is no word's edge.
LINES = st.text(alphabet="abAB_1 .{}-é\t", min_size=1, max_size=8)


@settings(max_examples=300, deadline=None)  # Python's engine goes back for long
@given(TREES, LINES, st.booleans())
def test_it_says_what_pythons_engine_says(tree, line, folds):
    text = ("(?i)" if folds else "") + tree
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = re.search(text, line) is not None
    assert Pattern(text).search(line) is expected, (text, line)


@settings(deadline=None)
@given(TREES, LINES)
def test_what_it_promises_to_be_in_every_match_is(tree, line):
    pattern = Pattern(tree)
    if re.search(tree, line):
        assert pattern.literal in line.lower()


@pytest.mark.parametrize(
    "text", ["(a+)+b", "(a|aa)+b", "(a*)*b", "(a|a)*b", ".*.*.*.*.*.*b", "(.*a){12}b", "(?:a?){40}a{40}b"]
)
def test_what_makes_others_go_back_for_ever_costs_a_look_a_character(text):
    pattern = Pattern(text)
    pattern.literal = ""  # the short way out is not what is measured
    steps = 0

    def count(frame, event, _arg):
        nonlocal steps
        steps += event == "call"

    line = "a" * 4000
    sys.setprofile(count)
    try:
        assert not pattern.search(line)
    finally:
        sys.setprofile(None)
    assert steps < 100_000  # of a pattern with m states a new entry costs m, and a known one nothing
    assert pattern.search(line + "b")


def test_the_table_is_bounded_whatever_the_line_holds():
    pattern = Pattern("[^x]{0,40}y.*z")
    pattern.search("".join(chr(0x4E00 + n) for n in range(3 * MAX_TABLE)))
    assert sum(map(len, pattern._table.values())) <= MAX_TABLE


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        ("LustreError: .* timed out", "lustreerror: "),
        ("(?:a|b)cde", "cde"),
        ("(abc)+d", "abc"),
        ("(abc)*d", "d"),
        (r"\bECC\b \d", "ecc "),
        ("a|b", ""),
        ("(?i)ABC", "abc"),
    ],
)
def test_the_longest_promised_text_is_known(text, literal):
    assert Pattern(text).literal == literal


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a(?=b)", "looking around"),
        ("(?<!a)b", "looking around"),
        (r"(a)\1", r"\1, which is not known"),
        ("(a", "a ( without its ) at character 1"),
        ("a)", "a ) without its ( at character 2"),
        ("[a", "a [ without its ]"),
        ("*a", "nothing to repeat at character 1"),
        ("a**", "a repeat of a repeat"),
        ("a{3,2}", "backwards"),
        ("a{5000}", "over 1000"),
        ("(a{900}){900}", "too large"),
        ("[b-a]", "backwards"),
        ("a\\", "nothing behind it"),
        (r"\xzz", "two hexadecimal digits"),
        ("(" * 60 + ")" * 60, "more than 50 groups"),
        ("a" * 1001, "at most 1000"),
    ],
)
def test_what_cannot_be_used_is_told_with_its_place(text, says):
    with pytest.raises(PatternError) as caught:
        Pattern(text)
    assert says in str(caught.value)


@given(st.text(max_size=30), LINES)
def test_any_text_is_compiled_or_refused_and_never_breaks(text, line):
    try:
        pattern = Pattern(text)
    except PatternError:
        return
    pattern.search(line)
