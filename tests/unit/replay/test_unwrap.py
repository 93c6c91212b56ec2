"""Wrapped lines are joined, whole ones are not, and offsets stay those of the pane."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.replay.unwrap import MAX_HELD_BYTES, Unwrapper, unwrap

SENTENCE = b"RuntimeError: Detected that you are using FX to symbolically trace a dynamo-optimized function."


def wrap(data: bytes, width: int) -> bytes:
    rows = (line[i : i + width] for line in data.split(b"\n") for i in range(0, max(len(line), 1), width))
    return b"\n".join(rows)


def test_a_wrapped_sentence_is_joined():
    assert unwrap(wrap(b"a\n" + SENTENCE + b"\nb\n", 40), 40) == b"a\n" + SENTENCE + b"\nb\n"


def test_a_bar_and_a_rule_that_fill_the_width_end_there():
    bar = b"train: 100%|#########| 11/56 [00:02<00:08,  5.02it/s]"
    for row in (bar, b"=" * 40):
        text = row + b"\nKilled\n"
        assert unwrap(text, len(row)) == text


def test_a_line_that_just_fills_the_width_does_not_swallow_a_traceback():
    text = b"x" * 40 + b"\nTraceback (most recent call last):\n"
    assert unwrap(text, 40) == text


def test_wide_characters_count_as_their_columns_and_colours_as_none():
    row = "\x1b[31m" + "漢" * 20 + "\x1b[0m"
    assert unwrap(f"{row}\nend\n".encode(), 40) == f"{row}end\n".encode()
    assert unwrap(f"{row}\nend\n".encode(), 20) == f"{row}\nend\n".encode()


def test_a_line_without_end_is_passed_on_and_not_kept():
    unwrapper = Unwrapper(80)
    given_out = 0
    for _ in range(64):
        given_out += len(unwrapper.feed(b"x" * 8192))
        assert given_out <= 64 * 8192
        assert len(unwrapper._partial) <= MAX_HELD_BYTES
    assert given_out + len(unwrapper.end()) == 64 * 8192


ROWS = st.lists(st.text(alphabet="ab \u6f22\x1b[3m=", max_size=24).map(str.encode), max_size=12)


@settings(deadline=None)
@given(ROWS, st.integers(4, 12), st.integers(1, 9))
def test_no_byte_but_line_ends_is_lost_offsets_hold_and_chunks_do_not_matter(rows, width, chunk):
    data = b"\n".join(rows)
    unwrapper = Unwrapper(width)
    out = b"".join(unwrapper.feed(data[i : i + chunk]) for i in range(0, len(data), chunk)) + unwrapper.end()
    assert out == unwrap(data, width)
    assert out.replace(b"\n", b"") == data.replace(b"\n", b"")
    for at, byte in enumerate(out):
        assert data[unwrapper.original(at)] == byte
