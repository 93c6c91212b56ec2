"""The scanner says what reading every line would say, in whatever pieces the log comes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.classify import LogScanner, logscan, shapes, words
from orchestrator.classify.catalog import SIGNATURES
from orchestrator.classify.logscan import MAX_LINE_BYTES
from orchestrator.classify.shapes import LOUD, MAX_SHAPE_BYTES, MAX_SHAPES, Meaning, Shapes
from orchestrator.classify.words import Words
from tests.fuzz.logs import cut, logs

if TYPE_CHECKING:
    from collections.abc import Collection

    from orchestrator.types.snapshot import LogReading

SIZES = st.lists(st.integers(1, 400), max_size=8)


class _ReadAll(Shapes):
    """Holds every line for loud, so that every line is read."""

    def judge(self, shapes: Collection[bytes]) -> dict[bytes, Meaning]:
        return dict.fromkeys(shapes, LOUD)


def scan(data: bytes, sizes: list[int]) -> LogReading:
    scanner = LogScanner()
    for at, piece in cut(data, sizes):
        scanner.feed(piece, at)
    return scanner.reading()


def scan_all(data: bytes) -> LogReading:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logscan, "_SHAPES", _ReadAll())
        return scan(data, [])


@given(logs(), SIZES)
@settings(max_examples=80, deadline=None)
def test_what_is_passed_over_changes_nothing(data: bytes, sizes: list[int]):
    met, judged, known = (scan(data, sizes) for _ in range(3))  # shapes are judged when they come again
    assert met == judged == known == scan_all(data)


@pytest.mark.parametrize("last", [101, 50])
def test_a_step_that_goes_back_at_once_has_survived_what_came_before_all_the_same(last: int):
    step = "step {} loss 2.314 lr 5.9e-04\n"
    met = "CUDA out of memory at micro-batch 3, a smaller one\n"
    data = (step.format(100) * 3 + met + step.format(500) + step.format(last) * 3).encode()
    for _ in range(3):
        assert [match.handled for match in scan(data, []).matches] == [True]


def test_what_is_remembered_of_shapes_is_bounded():
    known = Shapes()
    for number in range(40):
        known.judge({b"x" * number + b" %s loss" % bytes([97 + i % 26]) * (i % 30) for i in range(1000)})
        known.judge({b"%d" % i + b"y" * MAX_SHAPE_BYTES for i in range(100)})
    assert 0 < len(known) <= MAX_SHAPES


def test_a_word_is_found_by_its_letters_wherever_it_stands():
    index = Words((b"errno 28", b"nccl", b"[retry", b"--", b"c++"))
    assert index.find(b"oserror: [errno 28] no space") == [0]
    assert index.find(b"errno 281; libnccl.so.2 [retry 3] --") == [0, 1, 2, 3]
    assert index.find(b"g++ -c++") == [4]
    assert index.find(b"errno 2 ncc l retry - c+") == []


def test_every_word_of_the_catalogue_leads_to_its_signature():
    known = [word.encode() for signature in SIGNATURES for word in signature.words]
    index = Words(known)
    for number, word in enumerate(known):
        assert number in index.find(b"x1" + word + b"9y")
        assert Words(known).lines_with([b"some words before", b"x1" + word + b"9y", b""]) == {1}
    assert index.lines_with([b"\x00\xff quiet 1 2 3", b""]) == set()


@given(
    st.lists(st.lists(st.sampled_from(["nccl", "x", "errno 28", "-", "c++", " ", "errno", "28"])), max_size=9)
)
def test_lines_are_found_together_as_one_by_one(pieces: list[list[str]]):
    index = Words((b"errno 28", b"nccl", b"--", b"c++"))
    lines = ["".join(line).encode() for line in pieces]
    assert index.lines_with(lines) == {place for place, line in enumerate(lines) if index.find(line)}


@given(st.text(min_size=1, max_size=60), SIZES)
@settings(max_examples=80, deadline=None)
def test_a_character_cut_by_a_piece_is_whole_again(word: str, sizes: list[int]):
    text = "".join(c for c in word if c.isprintable()) or "\u00e4"
    data = f"KeyError: '{text}'\nsecond \U0001f600 line\n".encode(errors="replace")
    reading = scan(data, [1 + size % 3 for size in sizes] or [1])
    assert reading == scan(data, [])
    assert "\ufffd" not in "".join(reading.tail).replace(text, "")
    assert reading.matches[0].evidence.text == f"KeyError: '{text}'".encode(errors="replace").decode()


@given(st.integers(MAX_LINE_BYTES - 3, MAX_LINE_BYTES + 3), SIZES)
@settings(max_examples=40, deadline=None)
def test_a_line_as_long_as_the_longest_is_the_same_in_pieces(length: int, sizes: list[int]):
    before, line = b"step 1/9 loss 2.3\n", b"\xc3\xa4" * (length // 2) + b"KeyError: 'x'"
    data = before + line + b"\r\nKeyError: 'y'\n" + b"[rank1]: " + line + b" nccl error" * 900 + b"\nlast"
    cuts = [size * 13 for size in sizes]
    for _ in range(2):
        assert scan(data, cuts) == scan_all(data)
    assert [m.evidence.offset for m in scan(data, cuts).matches] == [len(before) + len(line) + 2]


@given(logs(), logs(), st.integers(1, 10**12), SIZES)
@settings(max_examples=80, deadline=None)
def test_a_gap_moves_what_comes_after_it_and_nothing_else(
    head: bytes, rest: bytes, gap: int, sizes: list[int]
):
    scanner, whole = LogScanner(), LogScanner()
    scanner.feed(head + b"\n", 0)
    whole.feed(head + b"\n", 0)
    at = len(head) + 1 + gap
    for start, piece in cut(rest, sizes):
        scanner.feed(piece, at + start)
        scanner.feed(piece[-3:], at + start + len(piece[:-3]))  # what comes twice is read once
    whole.feed(rest, len(head) + 1)
    shown, expected = scanner.reading(), whole.reading()
    offsets = [m.evidence.offset or 0 for m in expected.matches]
    moved = [offset + gap if offset > len(head) else offset for offset in offsets]
    assert [m.evidence.offset for m in shown.matches] == moved
    assert [m.evidence.text for m in shown.matches] == [m.evidence.text for m in expected.matches]
    assert shown.truncated == bool(rest)
    assert shown.last_step == expected.last_step


def test_an_index_that_forgets_finds_all_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(words, "MAX_RUNS", 3)
    index = Words((b"alpha", b"beta"))
    for number in range(50):
        new = bytes(97 + (number // 26**place) % 26 for place in range(3)) * 2
        assert index.find(b"alpha " + new + b" xbetax") == [0, 1]


def test_threads_that_share_what_is_remembered_read_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(words, "MAX_RUNS", 20)
    monkeypatch.setattr(shapes, "MAX_SHAPES", 20)
    log = "".join(
        f"{chr(97 + n % 26) * 5} word\nstep {n} loss 2.1\nKeyError: {n}\n" for n in range(300)
    ).encode()
    expected = scan(log, [])
    with ThreadPoolExecutor(4) as pool:
        shown = list(pool.map(lambda size: scan(log, [size]), range(50, 90)))
    assert all(reading == expected for reading in shown)
