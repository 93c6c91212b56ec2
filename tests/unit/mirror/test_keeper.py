"""What a watch's mirror does: within its quota, beside another watch, on a disk that takes nothing."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from orchestrator.mirror import Keeper, Limits, RunKey, RunMirror, layout, segments
from orchestrator.mirror.keeper import KEPT_WAITING, MAX_WAITING, RETRY_EVERY_S, SWEEP_EVERY_S
from tests.unit.mirror.test_store import KEY, NOW, text, whole
from tests.unit.watch.bench import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

OTHER = RunKey(id=8, name="other", target="local", created_at=NOW)
NOISE = random.Random(1).randbytes(4_000_000)  # does not get smaller


class Here:
    """A mirror that is written when the test says so."""

    def __init__(self, root: Path, *keys: RunKey, **limits: int) -> None:
        self.clock = FakeClock()
        self.keys = keys or (KEY,)
        self.keeper = Keeper(root, self.clock, Limits(**limits))
        for key in self.keys:
            self.keeper.add(key)
        self.root = root
        self.sent: dict[tuple[int, int], int] = {}

    def send(self, data: bytes, attempt: int = 1, key: RunKey | None = None) -> None:
        """The next bytes of a log."""
        place = ((key or self.keys[0]).id, attempt)
        offset = self.sent.get(place, 0)
        self.keeper.take(*place, data, offset, self.clock.now())
        self.sent[place] = offset + len(data)

    def turn(self, seconds: float = SWEEP_EVERY_S) -> list[str]:
        """Let it write and sweep; return what is to be told."""
        self.clock.sleep(seconds)
        self.keeper.turn()
        return [f"{news.key.name if news.key else '-'}: {news.text}" for news in self.keeper.news()]

    def live(self, data: bytes, attempt: int, key: RunKey | None = None) -> list[str]:
        """An attempt that wrote this and ended."""
        self.send(data, attempt, key)
        self.keeper.end((key or self.keys[0]).id, attempt, self.clock.now())
        return self.turn()

    def mirror(self, key: RunKey | None = None) -> RunMirror:
        return RunMirror(self.root, key or self.keys[0])

    def size(self) -> int:
        return sum(path.stat().st_size for path in self.root.rglob("attempt-*") if path.suffix != ".json")

    def close(self) -> None:
        for key in self.keys:
            self.keeper.remove(key.id)
        self.keeper.turn()


def age(here: Here, attempt: int, hours: float, key: RunKey | None = None) -> None:
    """Make the attempt's files so old."""
    for path in here.mirror(key).folder.glob(f"attempt-{attempt}.*"):
        at = path.stat().st_mtime - hours * 3600
        os.utime(path, (at, at))


def test_pieces_of_a_turn_are_written_together_and_an_end_is_written_down(tmp_path):
    here = Here(tmp_path / "logs")
    data = text(300_000)
    for start in range(0, len(data), 1000):
        here.send(data[start : start + 1000])
    assert here.turn() == []
    log = here.mirror().attempt(1)
    assert (whole(log), len(list(log._marks()))) == (data, 1)
    here.keeper.end(KEY.id, 1, here.clock.now())
    here.turn()
    assert here.mirror().attempt(1).notes.ended_at is not None


def test_a_newer_attempt_closes_the_one_that_was_killed_without_an_end(tmp_path):
    here = Here(tmp_path / "logs")
    here.send(text(1000))
    here.turn()
    here.send(text(500), attempt=2)
    here.turn()
    assert [path.name for path in here.mirror().folder.glob("*.tail")] == ["attempt-2.tail"]
    assert here.mirror().attempts == [1, 2]


def test_the_oldest_ended_attempts_go_first_and_leave_a_word(tmp_path):
    here = Here(tmp_path / "logs", run=1_000_000)
    for attempt in (1, 2, 3):
        assert here.live(NOISE[:300_000], attempt) == []
        age(here, attempt, 10 - attempt)
    (told,) = here.live(NOISE[:300_000], 4)
    quota = "the quota of 976.6 KiB a run"
    assert told == f"b32: the copy of attempt 1's log was removed by {quota} (293.1 KiB)"
    gone = here.mirror().attempt(1)
    (hole,) = gone.holes
    assert hole.removed is not None
    assert (gone.known_bytes, hole.length, hole.removed.by) == (0, 300_000, quota)
    assert hole.removed.size >= 300_000
    assert [whole(here.mirror().attempt(n)) == NOISE[:300_000] for n in (2, 3, 4)] == [True] * 3
    assert here.size() <= 1_000_000
    assert here.turn() == [], "told once"


def test_of_a_living_log_only_the_oldest_part_goes(tmp_path):
    here = Here(tmp_path / "logs", run=800_000)
    told = []
    for start in range(0, 2_400_000, 100_000):
        here.send(NOISE[start : start + 100_000])
        told += here.turn(0)
        here.keeper._runs[KEY.id].writer._writers[1].seal()
        told += here.turn()
    log = here.mirror().attempt(1)
    assert here.size() <= 900_000
    assert told
    assert all("the copy of attempt 1's log up to byte" in line for line in told)
    (hole,) = log.holes
    assert hole.start == 0
    assert log.size == 2_400_000
    pieces = list(log.read(0, log.size))
    assert b"".join(piece.data for piece in pieces) == NOISE[hole.stop : 2_400_000]
    assert hole.stop < 2_400_000 - 500_000


def test_what_was_removed_is_not_fetched_again_by_the_next_watch(tmp_path):
    here = Here(tmp_path / "logs", run=800_000)
    for attempt in (1, 2):
        here.live(NOISE[:500_000], attempt)
        age(here, attempt, 5 - attempt)
    here.close()
    again = Here(tmp_path / "logs", run=800_000)
    again.send(NOISE[:500_000], attempt=1)
    assert again.turn() == []
    assert again.mirror().attempt(1).known_bytes == 0


def test_the_whole_quota_counts_all_runs_and_takes_what_was_written_longest_ago(tmp_path):
    here = Here(tmp_path / "logs", KEY, OTHER, total=1_000_000, run=900_000)
    here.live(NOISE[:400_000], 1, OTHER)
    here.live(NOISE[:400_000], 1, KEY)
    age(here, 1, 3, OTHER)
    here.send(b"lives\n", 2, OTHER)
    here.send(b"lives\n", 2, KEY)
    told = here.live(NOISE[:300_000], 3, KEY)
    assert [line.partition(" was")[0] for line in told] == ["other: the copy of attempt 1's log"]
    assert here.mirror(KEY).attempt(1).known_bytes == 400_000


def test_another_watchs_living_log_is_never_touched(tmp_path):
    theirs = Here(tmp_path / "logs", OTHER)
    theirs.send(NOISE[:900_000])
    theirs.turn()
    here = Here(tmp_path / "logs", KEY, total=500_000, run=400_000)
    here.send(b"x\n")
    assert here.turn() == []
    assert whole(theirs.mirror().attempt(1)) == NOISE[:900_000]
    theirs.close()
    here.send(NOISE[:100_000])
    assert len(here.turn()) == 1, "its watch has gone, and so may its log"


def test_of_two_watches_one_writes_and_the_other_goes_on_when_that_ends(tmp_path):
    first, second = Here(tmp_path / "logs"), Here(tmp_path / "logs")
    data = text(90_000)
    for here in (first, second):
        here.send(data[:40_000])
    assert first.turn() == []
    assert second.turn() == ["b32: another watch keeps the copy of its log; this one leaves that alone"]
    for here in (first, second):
        here.send(data[40_000:60_000])
    first.turn()
    first.close()
    second.send(data[60_000:])
    assert second.turn() == []
    log = second.mirror().attempt(1)
    assert (whole(log), log.holes) == (data, [])


def test_a_watch_that_waits_for_its_turn_keeps_only_the_newest(tmp_path):
    first, second = Here(tmp_path / "logs"), Here(tmp_path / "logs")
    first.send(b"x\n")
    first.turn()
    for start in range(0, 2_000_000, 500_000):
        second.send(NOISE[start : start + 500_000])
        second.turn()
        assert second.keeper._num_waiting <= KEPT_WAITING
    first.close()
    assert second.turn() == []
    (hole,) = second.mirror().attempt(1).holes
    assert (hole.start, hole.stop) == (2, 2_000_000 - KEPT_WAITING)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 512 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small file system cannot be mounted")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_is_told_once_and_that_it_works_again_and_nothing_is_torn(small_disk):
    here = Here(small_disk / "logs")
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(300_000))
    told = []
    for start in range(0, 1_000_000, 100_000):
        here.send(NOISE[start : start + 100_000])
        told += here.turn(RETRY_EVERY_S)
    (line,) = told
    assert "the copies of logs cannot be written: No space left on device" in line
    kept = here.mirror().attempt(1)
    assert NOISE.startswith(whole(kept))
    ballast.unlink()
    (line,) = here.turn(RETRY_EVERY_S)
    left_out = 1_000_000 - KEPT_WAITING - kept.size
    assert line == f"-: the copies of logs are written again; {left_out / 1024:.1f} KiB of them were left out"
    log = here.mirror().attempt(1)
    (hole,) = log.holes
    assert (log.size, hole.length) == (1_000_000, left_out)
    for piece in log.read(0, log.size):
        assert NOISE[piece.offset : piece.offset + len(piece.data)] == piece.data


def test_a_place_that_cannot_be_written_is_told_and_stops_nothing(tmp_path):
    (tmp_path / "logs").write_text("a file")
    here = Here(tmp_path / "logs")
    here.send(b"x\n")
    (line,) = here.turn()
    assert "cannot be written" in line
    here.send(b"y\n")
    assert here.turn() == []
    (tmp_path / "logs").unlink()
    assert len(here.turn()) == 1
    assert whole(here.mirror().attempt(1)) == b"x\ny\n"


def test_a_run_that_rm_took_away_is_written_anew_only_if_it_goes_on(tmp_path):
    here = Here(tmp_path / "logs")
    here.send(text(1000))
    here.turn()
    shutil.rmtree(here.mirror().folder)
    assert here.turn() == []
    assert not here.mirror().folder.exists()
    here.send(b"more\n")
    assert here.turn() == []
    assert [(p.offset, p.data) for p in here.mirror().attempt(1).read(0, 9999)] == [(1000, b"more\n")]


def test_an_attempt_that_prune_took_away_under_the_writer_is_no_fault(tmp_path):
    here = Here(tmp_path / "logs")
    here.send(text(1000))
    here.turn()
    layout.tail_path(here.mirror().folder, 1).unlink()
    here.send(b"more\n")
    assert here.turn() == []
    assert here.mirror().attempt(1).size == 1005


def test_a_disk_that_hangs_holds_nobody_up(tmp_path, monkeypatch):
    here = Here(tmp_path / "logs")
    goes_on = threading.Event()

    def hang(*_: object) -> int:
        goes_on.wait(30)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(segments, "append", hang)
    here.keeper.start()
    piece = NOISE[:2_000_000]
    for _ in range(MAX_WAITING // len(piece) + 10):
        here.send(piece)
    here.keeper.close(0.2)
    assert here.keeper._num_waiting <= MAX_WAITING
    assert ["their disk took nothing for 0.2 s" in news.text for news in here.keeper.news()] == [True]
    goes_on.set()
    here.keeper._thread.join(60)


def test_the_thread_writes_by_itself_and_all_that_waits_at_the_end(tmp_path):
    here = Here(tmp_path / "logs")
    here.keeper.start()
    here.send(text(5000))
    here.keeper.close()
    assert whole(here.mirror().attempt(1)) == text(5000)
    assert not here.mirror().is_watched


def test_another_record_with_the_same_number_is_another_run(tmp_path):
    later = RunKey(id=KEY.id, name="b32", target="local", created_at=NOW + timedelta(seconds=1))
    here = Here(tmp_path / "logs", KEY)
    here.live(b"one\n", 1)
    assert RunMirror(tmp_path / "logs", later).attempts == []
    assert layout.run_key(here.mirror().folder) == KEY


def test_a_run_that_is_watched_no_more_is_written_to_its_end_and_let_go(tmp_path):
    here = Here(tmp_path / "logs", KEY, OTHER)
    here.send(b"one\n")
    here.send(b"two\n", key=OTHER)
    here.keeper.remove(KEY.id)
    here.send(b"late\n")
    here.turn()
    assert whole(here.mirror().attempt(1)) == b"one\n"
    assert [here.mirror(key).is_watched for key in here.keys] == [False, True]
    here.keeper.add(KEY)
    here.send(b"back\n")
    assert here.turn() == []
    assert [piece.data for piece in here.mirror().attempt(1).read(0, 99)] == [b"one\n", b"back\n"]


def test_an_offset_that_makes_no_sense_is_told_and_costs_the_others_nothing(tmp_path):
    here = Here(tmp_path / "logs", KEY, OTHER)
    here.keeper.take(KEY.id, 1, b"x\n", 1 << 70, here.clock.now())
    here.send(b"one\n")
    here.send(b"two\n", key=OTHER)
    told, over = here.turn()
    assert "the copies of logs cannot be written" in told
    assert over == "-: the copies of logs are written again; 2 B of them were left out"
    assert [whole(here.mirror(key).attempt(1)) for key in here.keys] == [b"one\n", b"two\n"]
    assert here.turn() == []
    assert here.keeper._num_waiting == 0
