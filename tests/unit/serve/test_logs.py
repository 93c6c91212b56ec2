"""Where a range of a log comes from: the copy here, the container, or as much as there is without one."""

from __future__ import annotations

import pytest

from orchestrator.errors import HostUnreachable
from orchestrator.mirror import RunKey
from orchestrator.serve.copies import Copies
from orchestrator.serve.logs import LogReader
from tests.builders import NOW
from tests.unit.mirror.test_keeper import Here
from tests.unit.serve.stage import CLOCK


class Row:
    """A run on record, as a way to its log needs it."""

    id = 7
    name = "dflash"
    target_key = "pve/200"
    created_at = NOW


class Gone:
    """A container that cannot be reached."""

    target_key = "pve/200"
    num_drops = 0
    is_closed = False

    @property
    def state_dir(self) -> str:
        raise HostUnreachable("pve/200: no route to host")

    def drop(self) -> None:
        self.num_drops += 1

    def close(self) -> None:
        self.is_closed = True


LOG = b"".join(b"line %06d\n" % number for number in range(20_000))


@pytest.fixture
def here(tmp_path) -> Here:
    return Here(tmp_path, RunKey.of(Row()))


@pytest.fixture
def reader(here):
    sites: list[Gone] = []

    def open_site(row):
        sites.append(Gone())
        return sites[-1]

    made = LogReader(open_site, CLOCK, Copies(here.root))
    made.sites = sites  # type: ignore[attr-defined]
    return made


def test_an_ended_attempt_is_read_from_its_copy_alone(here, reader):
    here.live(LOG, 1)
    for start, length in ((0, 10), (100_003, 4096), (len(LOG) - 5, 100), (len(LOG), 10), (9**12, 10)):
        piece = reader.read(Row(), 1, start, length, None)
        assert (piece.data, piece.size, piece.source) == (LOG[start : start + length], len(LOG), "mirror")
        assert piece.start == min(start, len(LOG))
    last = reader.read(Row(), None, -11, 4096, 1)
    assert (last.attempt, last.start, last.data) == (1, len(LOG) - 11, LOG[-11:])
    assert reader.read(Row(), 1, -(9**12), 7, None).data == LOG[:7]
    assert reader.size_here(Row(), 1) == len(LOG)
    assert reader.sites == []


def test_a_copy_that_may_be_old_counts_only_where_the_container_cannot_be_reached(here, reader):
    here.send(LOG, 1)
    here.turn()
    here.keeper.remove(7)  # nobody writes it any more, and the attempt goes on
    here.turn()
    piece = reader.read(Row(), 1, -11, 100, None)
    assert (piece.data, piece.source) == (LOG[-11:], "mirror")
    assert [site.num_drops for site in reader.sites] == [1], "it was asked first, and connects anew next time"
    with pytest.raises(HostUnreachable):
        reader.read(Row(), 2, 0, 100, None)


def test_a_copy_that_grows_is_read_as_far_as_it_is_written(here, reader):
    here.send(LOG[:1000], 1)
    here.turn()
    assert reader.read(Row(), 1, 990, 100, None).data == LOG[990:1000]
    here.send(LOG[1000:2000], 1)
    here.turn()
    again = reader.read(Row(), 1, 990, 2000, None)
    assert (again.data, again.size) == (LOG[990:2000], 2000)


def test_over_a_gap_the_container_is_asked_and_without_it_the_range_ends_at_the_gap(here, reader):
    here.send(LOG[:1000], 1)
    here.turn()
    here.sent[(7, 1)] = 5000
    here.live(LOG[5000:6000], 1)
    short = reader.read(Row(), 1, 900, 4500, None)
    assert (short.data, short.size) == (LOG[900:1000], 6000)
    with pytest.raises(HostUnreachable):
        reader.read(Row(), 1, 2000, 100, None)
    assert reader.read(Row(), 1, 5500, 4096, None).data == LOG[5500:6000]


def test_ways_that_nobody_uses_are_closed(here, reader, monkeypatch):
    with pytest.raises(HostUnreachable):
        reader.read(Row(), 3, 0, 1, None)
    reader.sweep()
    assert not reader.sites[0].is_closed
    now = CLOCK.monotonic()
    monkeypatch.setattr(type(CLOCK), "monotonic", lambda _self: now + 1_000)
    reader.sweep()
    assert reader.sites[0].is_closed
    with pytest.raises(HostUnreachable):
        reader.read(Row(), 3, 0, 1, None)
    reader.close()
    assert [site.is_closed for site in reader.sites] == [True, True]
