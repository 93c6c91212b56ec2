"""A watch keeps what its runs print: every byte, once, and what it could not keep is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.mirror import Keeper, RunKey, RunMirror
from orchestrator.watch.events import Level
from orchestrator.wire import pack_bytes
from tests.unit.watch.bench import Bench

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.record import Record


class Mirrored(Bench):
    """A bench whose watch keeps logs; they are written when `kept` looks."""

    def __init__(self, record: Record, root: Path) -> None:
        self.root = root
        super().__init__(record, mirrors=self._keeps)
        self.key = RunKey.of(self.rows[0])

    def _keeps(self, bench: Bench) -> Keeper:
        self.keeper = Keeper(self.root, bench.clock)
        return self.keeper

    def log(self, data: bytes, offset: int, attempt: int = 1, **more: object) -> None:
        fields = {"run": "dflash", "attempt": attempt, "offset": offset, "data": pack_bytes(data), **more}
        self.send({"type": "log", **fields})

    def kept(self, attempt: int = 1, emptied: int = 0) -> bytes:
        self.turn()
        self.keeper.turn()
        self.turn()
        log = RunMirror(self.root, self.key).attempt(attempt, emptied=emptied)
        return b"".join(piece.data for piece in log.read(0, log.size))


@pytest.fixture
def mirrored(record: Record, tmp_path: Path) -> Mirrored:
    return Mirrored(record, tmp_path / "logs")


def test_the_log_is_kept_byte_for_byte_and_its_end_is_known(mirrored):
    mirrored.live()
    mirrored.log(b"one\ntw", 0)
    mirrored.log(b"o\n", 6)
    mirrored.log(b"two\nthree", 4)  # after a cut the guest begins where it was asked to
    assert mirrored.kept() == b"one\ntwo\nthree"
    mirrored.die(code=0)
    mirrored.kept()
    assert RunMirror(mirrored.root, mirrored.key).attempt(1).notes.ended_at is not None
    assert mirrored.told("mirror") == []


def test_a_log_that_was_emptied_is_told_and_what_was_in_it_stays(mirrored):
    mirrored.live()
    mirrored.log(b"before\n", 0)
    mirrored.kept()
    mirrored.log(b"after\n", 0, anew=True)
    assert (mirrored.kept(), mirrored.kept(emptied=1)) == (b"after\n", b"before\n")
    assert mirrored.told("mirror") == ["somebody emptied its log; what was in it before is kept apart"]


def test_what_cannot_be_kept_is_told_once_and_the_watch_goes_on(mirrored):
    mirrored.root.write_text("no folder")
    mirrored.live()
    for number in range(3):
        mirrored.log(b"line\n", 5 * number)
        mirrored.kept()
    (event,) = [event for event in mirrored.sink.events if event.kind == "mirror"]
    assert (event.level, event.run) == (Level.WARNING, "-")
    assert "the watch goes on without" in event.text
    assert [event.text for event in mirrored.sink.events if event.kind == "log"] == ["line"] * 3
    mirrored.die()
    mirrored.turn()
    assert any(event.kind == "diagnosis" for event in mirrored.sink.events)


def test_a_watch_that_leaves_a_run_lets_another_keep_its_log(mirrored):
    mirrored.live()
    mirrored.log(b"one\n", 0)
    mirrored.kept()
    mirror = RunMirror(mirrored.root, mirrored.key)
    assert mirror.is_watched
    mirrored.watcher.remove(mirrored.run)
    mirrored.keeper.turn()
    assert not mirror.is_watched
