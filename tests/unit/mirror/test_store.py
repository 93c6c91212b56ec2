"""The store of one attempt's log: exactly the bytes that came, whatever the order, whatever was torn."""

from __future__ import annotations

import gzip
import os
import random
import stat
import tempfile
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.mirror import AttemptLog, Hole, frames, journal, layout, notes, segments
from orchestrator.mirror.frames import FRAME_BYTES, Mark
from orchestrator.mirror.layout import RunKey
from orchestrator.mirror.spans import Spans
from orchestrator.mirror.writing import AttemptWriter

if TYPE_CHECKING:
    from orchestrator.mirror.segments import Placed

NOW = datetime(2026, 11, 29, 12, tzinfo=timezone.utc)
AT = NOW.timestamp()
KEY = RunKey(id=7, name="b32", target="local", created_at=NOW)
LINE = b"step %07d/9000000 loss 2.3412 1203 tok/s\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return layout.make_folder(tmp_path / "logs", KEY)


def text(count: int, first: int = 0) -> bytes:
    """Return so many bytes of lines, each another."""
    length = len(LINE % 0)
    return b"".join(LINE % n for n in range(first, first + count // length + 1))[:count]


def whole(log: AttemptLog) -> bytes:
    return b"".join(piece.data for piece in log.read(0, log.size))


@pytest.mark.parametrize("piece", [1000, 40_000, 3_000_000])
def test_a_log_comes_back_byte_for_byte_while_it_grows_and_when_it_has_ended(folder, piece):
    data = text(3_500_000)
    writer = AttemptWriter(folder, 3)
    for start in range(0, len(data), piece):
        writer.add(start, data[start : start + piece], AT)
    assert whole(AttemptLog(folder, 3)) == data
    writer.end(AT)
    log = AttemptLog(folder, 3)
    assert (whole(log), log.size, log.holes) == (data, len(data), [])
    assert log.notes.ended_at == "2026-11-29T12:00:00.000000Z"
    assert not layout.tail_path(folder, 3).exists()
    (segment,) = layout.segments(folder, 3)
    assert gzip.decompress(segment.path.read_bytes()) == data, "zcat reads it"
    assert segment.path.stat().st_size < len(data) / 4


def test_what_no_watch_saw_is_a_hole_and_is_filled_when_it_comes(folder):
    data = text(300_000)
    writer = AttemptWriter(folder, 1)
    writer.add(200_000, data[200_000:], AT)
    writer.add(0, data[:50_000], AT)
    log = AttemptLog(folder, 1)
    assert log.holes == [Hole(50_000, 200_000)]
    assert [(piece.offset, len(piece.data)) for piece in log.read(40_000, 170_000)] == [
        (40_000, 10_000),
        (200_000, 10_000),
    ]
    writer.add(30_000, data[30_000:250_000], AT)
    log.refresh()
    assert (log.holes, whole(log)) == ([], data)


def test_another_watch_goes_on_where_the_one_before_was_killed(folder):
    data = text(2_500_000)
    AttemptWriter(folder, 1).add(0, data[:1_700_000], AT)
    second = AttemptWriter(folder, 1)
    assert second.add(1_000_000, data[1_000_000:], AT) is False
    second.end(AT)
    log = AttemptLog(folder, 1)
    assert (log.holes, whole(log)) == ([], data)


@given(cut=st.integers(0, 60_000), wrong=st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_torn_journal_is_read_up_to_its_last_whole_record(cut, wrong):
    with tempfile.TemporaryDirectory() as home:
        folder, data = layout.make_folder(Path(home), KEY), text(60_000)
        writer = AttemptWriter(folder, 1)
        for start in range(0, 60_000, 10_000):
            writer.add(start, data[start : start + 10_000], AT)
        path = layout.tail_path(folder, 1)
        content = path.read_bytes()
        content = content[: len(content) - cut]
        path.write_bytes(content + bytes(cut) if wrong else content)  # a power cut leaves zeros
        log = AttemptLog(folder, 1)
        assert log.known_bytes in range(0, 60_001, 10_000)
        assert log.known_bytes >= 60_000 - cut - 10_000
        assert data.startswith(whole(log))
        again = AttemptWriter(folder, 1)
        again.add(log.size, data[log.size :], AT)
        again.end(AT)
        assert whole(AttemptLog(folder, 1)) == data


@pytest.mark.parametrize("cut", [1, 50, 5_000])
def test_a_torn_frame_is_no_frame_and_gives_way_to_the_next(folder, cut):
    data = text(2_200_000)
    writer = AttemptWriter(folder, 1)
    writer.add(0, data[:2_000_000], AT)
    writer.seal()
    (segment,) = layout.segments(folder, 1)
    os.truncate(segment.path, segment.path.stat().st_size - cut)
    log = AttemptLog(folder, 1)
    assert (log.size, whole(log)) == (FRAME_BYTES, data[:FRAME_BYTES])
    again = AttemptWriter(folder, 1)
    again.add(0, data, AT)
    again.end(AT)
    assert whole(AttemptLog(folder, 1)) == data
    assert gzip.decompress(segment.path.read_bytes()) == data


def test_a_frame_that_rotted_is_left_out_and_never_read_as_it_is(folder):
    data = text(3 * FRAME_BYTES)
    writer = AttemptWriter(folder, 1)
    writer.add(0, data, AT)
    (segment,) = layout.segments(folder, 1)
    with segment.path.open("r+b") as file:
        file.seek(segment.path.stat().st_size // 2)
        file.write(b"rotten")
    found = list(AttemptLog(folder, 1).read(0, len(data)))
    assert [piece.offset for piece in found] == [0, 2 * FRAME_BYTES]
    assert all(data[piece.offset : piece.offset + len(piece.data)] == piece.data for piece in found)


def test_killed_between_frame_and_journal_nothing_is_doubled(folder):
    data = text(500_000)
    writer = AttemptWriter(folder, 1)
    writer.add(0, data[:400_000], AT)
    held = layout.tail_path(folder, 1).read_bytes()
    writer.seal()
    layout.tail_path(folder, 1).write_bytes(held)
    assert whole(AttemptLog(folder, 1)) == data[:400_000]
    again = AttemptWriter(folder, 1)
    again.add(400_000, data[400_000:], AT)
    assert whole(AttemptLog(folder, 1)) == data


def test_a_log_that_was_emptied_begins_anew_and_what_was_in_it_stays(folder):
    before, after = text(70_000), text(9_000, first=5000)
    writer = AttemptWriter(folder, 2)
    writer.add(0, before, AT)
    writer.begin_anew(AT)
    writer.add(0, after, AT)
    log = AttemptLog(folder, 2)
    assert whole(log) == after
    assert [(each.number, each.length) for each in log.notes.emptied] == [(1, 70_000)]
    assert whole(AttemptLog(folder, 2, emptied=1)) == before


def test_a_log_that_was_emptied_while_no_watch_looked_is_seen_by_its_bytes(folder):
    before, after = text(70_000), text(90_000, first=5000)
    AttemptWriter(folder, 2).add(0, before, AT)
    assert AttemptWriter(folder, 2).add(0, after, AT) is True
    assert whole(AttemptLog(folder, 2)) == after
    assert whole(AttemptLog(folder, 2, emptied=1)) == before


def test_a_secret_that_became_known_since_makes_no_other_log(folder):
    writer = AttemptWriter(folder, 2)
    writer.add(0, b"key hunter22 used\n", AT)
    assert writer.add(0, b"key ******** used\nnext\n", AT) is False
    assert whole(AttemptLog(folder, 2)) == b"key hunter22 used\nnext\n"


def test_others_may_read_none_of_it(folder):
    before = os.umask(0)
    try:
        writer = AttemptWriter(folder, 1, segment_bytes=1000)
        writer.add(0, text(2 * FRAME_BYTES + 10), AT)
        notes.change(folder, 1, lambda before: replace(before, ended_at="x"))
        lock = layout.take_lock(folder)
        assert lock is not None
        os.close(lock)
    finally:
        os.umask(before)
    assert len(list(folder.iterdir())) == 6
    for path in (folder.parent, folder, *folder.iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_range_of_a_big_log_is_read_without_reading_the_log(folder, monkeypatch):
    """5 GB of zeros in 5000 frames, written as the writer writes them, each once compressed."""
    count = 5000
    zeros = bytes(FRAME_BYTES)
    packed = frames.encode(0, zeros, (Mark(0, AT),))
    with layout.segment_path(folder, 1, 1).open("wb") as file:
        for number in range(count):
            member = bytearray(packed)
            at = packed.index(frames._NAME) + 5
            member[at : at + 8] = (number * FRAME_BYTES).to_bytes(8, "little")
            file.write(member)
    log = AttemptLog(folder, 1)
    assert (log.size, log.holes) == (count * FRAME_BYTES, [])
    loads: list[Placed] = []
    load = segments.load

    def counted(placed: Placed) -> bytes | None:
        loads.append(placed)
        return load(placed)

    monkeypatch.setattr(segments, "load", counted)
    middle = count // 2 * FRAME_BYTES
    pieces = list(log.read(middle - 100, 200))
    assert [(piece.offset, len(piece.data)) for piece in pieces] == [(middle - 100, 100), (middle, 100)]
    list(log.read(middle, 200))
    assert len(loads) == 2


def test_from_when_bytes_are(folder):
    data = text(4000)
    writer = AttemptWriter(folder, 1)
    for number in range(4):
        writer.add(number * 1000, data[number * 1000 : number * 1000 + 1000], AT + 60 * number)
    for _ in range(2):  # in the journal, and in a frame
        log = AttemptLog(folder, 1)
        assert [log.since(AT + at) for at in (-5, 0, 1, 60, 61, 180)] == [0, 0, 1000, 1000, 2000, 3000]
        assert (log.since(AT + 181), log.last_at) == (None, AT + 180)
        writer.seal()


@given(st.lists(st.floats(0, 1e7, allow_nan=False), max_size=400))
@settings(max_examples=60, deadline=None)
def test_fewer_marks_never_tell_a_time_too_early(times):
    marks = [Mark(offset, at) for offset, at in enumerate(times)]
    kept = frames.thinned(marks)
    assert len(kept) <= frames.MAX_MARKS
    for number, mark in enumerate(kept):
        stop = kept[number + 1].offset if number + 1 < len(kept) else len(times)
        assert mark.at == max(times[mark.offset : stop])


@given(st.binary(max_size=3000), st.integers(0, 1 << 60))
@settings(max_examples=50, deadline=None)
def test_a_frame_gives_its_bytes_or_nothing(data, offset):
    member = frames.encode(offset, data, (Mark(offset, AT),))
    frame = frames.header(member)
    assert frame is not None
    assert (frame.offset, frames.decode(member, frame)) == (offset, data)
    assert gzip.decompress(member) == data
    torn = random.Random(len(data)).randrange(len(member))
    assert frames.decode(member[:torn], frame) is None
    broken = bytearray(member)
    broken[torn] ^= 0x55
    changed = frames.header(bytes(broken))
    assert changed is None or torn < 40 or frames.decode(bytes(broken), changed) in (None, data)


@given(st.binary(max_size=400))
@settings(max_examples=60, deadline=None)
def test_no_bytes_break_the_readers(content):
    frames.header(content)
    journal.parse(journal.head(0) + content)
    journal.parse(content)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=30))
@settings(max_examples=150, deadline=None)
def test_spans_are_the_set_of_their_offsets(added):
    spans, truth = Spans(), set()
    for start, length in added:
        spans.add(start, start + length)
        truth |= set(range(start, start + length))
    assert {n for start, stop in spans for n in range(start, stop)} == truth
    for start, stop in ((0, 80), (13, 40)):
        missing = {n for a, b in spans.missing(start, stop) for n in range(a, b)}
        known = {n for a, b in spans.known(start, stop) for n in range(a, b)}
        assert (missing, known) == (set(range(start, stop)) - truth, truth & set(range(start, stop)))


CHUNKS = st.lists(
    st.tuples(
        st.integers(0, 9000), st.integers(1, 3000), st.sampled_from(["add", "add", "add", "seal", "again"])
    ),
    max_size=25,
)


@given(CHUNKS)
@settings(max_examples=80, deadline=None)
def test_any_order_of_chunks_gives_back_exactly_what_is_known(chunks):
    data = text(12_000)
    truth: set[int] = set()
    with tempfile.TemporaryDirectory() as home:
        folder = layout.make_folder(Path(home), KEY)
        writer = AttemptWriter(folder, 1, segment_bytes=500)
        reader = AttemptLog(folder, 1)
        for start, length, what in chunks:
            assert writer.add(start, data[start : start + length], AT) is False
            truth |= set(range(start, start + length))
            if what == "seal":
                writer.seal()
            elif what == "again":
                writer = AttemptWriter(folder, 1, segment_bytes=500)
            reader.refresh()
            assert reader.known_bytes == len(truth)
        for log in (reader, AttemptLog(folder, 1)):
            pieces = list(log.read(0, 20_000))
            assert {n for p in pieces for n in range(p.offset, p.offset + len(p.data))} == truth
            assert sum(len(piece.data) for piece in pieces) == len(truth), "none twice"
            assert all(data[piece.offset : piece.offset + len(piece.data)] == piece.data for piece in pieces)
            assert sum(hole.length for hole in log.holes) == max(truth, default=-1) + 1 - len(truth)
