"""The scanner says what reading every line would say, in whatever pieces the log comes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.classify import LogScanner, logscan
from orchestrator.classify.catalog import SIGNATURES
from orchestrator.classify.shapes import LOUD, MAX_SHAPE_BYTES, MAX_SHAPES, Meaning, Shapes
from orchestrator.classify.words import Words
from tests.fuzz.logs import cut, logs

if TYPE_CHECKING:
    from collections.abc import Collection

    from orchestrator.types import LogReading

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
@settings(max_examples=150, deadline=None)
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
    shapes = Shapes()
    for number in range(40):
        shapes.judge({b"x" * number + b" %s loss" % bytes([97 + i % 26]) * (i % 30) for i in range(1000)})
        shapes.judge({b"%d" % i + b"y" * MAX_SHAPE_BYTES for i in range(100)})
    assert 0 < len(shapes) <= MAX_SHAPES


def test_a_word_is_found_by_its_letters_wherever_it_stands():
    words = Words((b"errno 28", b"nccl", b"[retry", b"--", b"c++"))
    assert words.find(b"oserror: [errno 28] no space") == [0]
    assert words.find(b"errno 281; libnccl.so.2 [retry 3] --") == [0, 1, 2, 3]
    assert words.find(b"g++ -c++") == [4]
    assert words.find(b"errno 2 ncc l retry - c+") == []


def test_every_word_of_the_catalogue_leads_to_its_signature():
    known = [word.encode() for signature in SIGNATURES for word in signature.words]
    index = Words(known)
    for number, word in enumerate(known):
        assert number in index.find(b"x1" + word + b"9y")
