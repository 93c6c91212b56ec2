"""Processes of a node take turns: real processes, a real kernel lock."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cli import LONG_S
from trainer.compiling import serial

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
HOLD_S = 0.4
CHILD = """
import contextlib, sys, time
from pathlib import Path
from trainer.compiling import serial

directory, rank, hold = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
lock, serial.FIRST_WORD_S = sys.argv[4], float(sys.argv[5])
if lock == "without":
    serial._try = lambda file, filled: True
filled = (directory / "filled").exists
beats = []
(directory / f"ready-{rank}").touch()
while not (directory / "go").exists():
    time.sleep(0.005)
with serial.node_turn(directory, rank, lambda: beats.append(time.monotonic()), filled=filled) as turn:
    begun = time.monotonic()
    print("holding", flush=True)
    time.sleep(hold)
    ended = time.monotonic()
print(begun, ended, turn.waited_s, len(beats), turn.alone, flush=True)
"""


def start(directory: Path, rank: int, *, hold: float = HOLD_S, lock: str = "with", first_word: float = 10.0):
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(directory), str(rank), str(hold), lock, str(first_word)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def turns(
    directory: Path, ranks: int, lock: str, hold: float = HOLD_S
) -> list[tuple[float, float, float, int]]:
    """(begun, ended, waited, beats) of each process, in the order of their turns."""
    children = [start(directory, rank, hold=hold, lock=lock) for rank in range(ranks)]
    while len(list(directory.glob("ready-*"))) < ranks:
        time.sleep(0.01)
    (directory / "go").touch()
    found = []
    for child in children:
        out, err = child.communicate(timeout=LONG_S)
        assert child.returncode == 0, err
        begun, ended, waited, beats, _ = out.split()[1:]
        found.append((float(begun), float(ended), float(waited), int(beats)))
    return sorted(found)


def overlaps(found: list[tuple[float, float, float, int]]) -> int:
    return sum(later[0] < earlier[1] for earlier, later in pairwise(found))


def test_no_two_processes_of_a_node_compile_at_the_same_time(tmp_path):
    found = turns(tmp_path, 4, "with")
    assert overlaps(found) == 0
    # Who waits goes on beating, no oftener than each half second.
    for _, _, waited, beats in found:
        assert beats <= waited / serial.BEAT_S + 1
    assert max(beats for *_, beats in found) > 1


def test_without_the_lock_that_check_sees_them_overlap(tmp_path):
    assert overlaps(turns(tmp_path, 4, "without", hold=2.0)) == 3


def test_a_holder_that_is_killed_gives_its_turn_up(tmp_path):
    (tmp_path / "go").touch()
    holder = start(tmp_path, 0, hold=3600)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "holding\n"
    waiting = start(tmp_path, 1, hold=0)
    while not (tmp_path / "ready-1").exists():
        time.sleep(0.01)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(1)
    os.kill(holder.pid, signal.SIGKILL)
    out, _ = waiting.communicate(timeout=LONG_S)
    assert waiting.returncode == 0
    assert float(out.split()[3]) > 0.5
    holder.communicate()


def test_only_a_holder_that_died_in_its_turn_leaves_something_to_sweep(tmp_path):
    swept: list[str] = []
    for _ in range(2):
        with serial.node_turn(tmp_path, 0, lambda: None, swept.append):
            assert swept == []
    with pytest.raises(ValueError, match="no"), serial.node_turn(tmp_path, 0, lambda: None):
        raise ValueError("no")
    (tmp_path / "go").touch()
    holder = start(tmp_path, 3, hold=3600)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "holding\n"
    holder.kill()
    holder.communicate()
    for _ in range(2):
        with serial.node_turn(tmp_path, 0, lambda: None, swept.append):
            assert swept == [f"rank 3, pid {holder.pid}"]


def test_who_waits_long_says_for_whom(tmp_path):
    (tmp_path / "go").touch()
    holder = start(tmp_path, 0, hold=3600)
    assert holder.stdout is not None
    holder.stdout.readline()
    waiting = start(tmp_path, 1, hold=0, first_word=0.3)
    assert waiting.stderr is not None
    assert f"compile: rank 1 waits for rank 0, pid {holder.pid}, " in waiting.stderr.readline()
    time.sleep(0.5)  # the next word is due in a minute
    holder.kill()
    assert waiting.communicate(timeout=LONG_S)[1] == ""
    holder.communicate()


def test_who_waits_briefly_says_nothing(tmp_path):
    (tmp_path / "go").touch()
    holder = start(tmp_path, 0, hold=0.5)
    assert holder.stdout is not None
    holder.stdout.readline()
    waiting = start(tmp_path, 1, hold=0, first_word=LONG_S)
    assert waiting.communicate(timeout=LONG_S)[1] == ""
    assert holder.communicate()[1] == ""


def test_a_turn_that_fails_is_given_up(tmp_path):
    with pytest.raises(ValueError, match="no"), serial.node_turn(tmp_path, 0, lambda: None):
        raise ValueError("no")
    with contextlib.ExitStack() as stack:
        assert stack.enter_context(serial.node_turn(tmp_path, 1, lambda: None)).waited_s < LONG_S


def alone(child: subprocess.Popen[str]) -> str:
    out, err = child.communicate(timeout=LONG_S)
    assert child.returncode == 0, err
    return out.split()[-1]


def test_who_finds_the_cache_filled_shares_the_turn_and_who_does_not_has_it_alone(tmp_path):
    (tmp_path / "filled").touch()
    found = turns(tmp_path, 3, "with", hold=2.0)
    assert overlaps(found) == 2
    assert (tmp_path / "turn.lock").read_bytes() == b""


def test_who_has_something_to_compile_waits_for_those_who_share(tmp_path):
    (tmp_path / "go").touch()
    (tmp_path / "filled").touch()
    sharing = start(tmp_path, 0, hold=3600)
    assert sharing.stdout is not None
    assert sharing.stdout.readline() == "holding\n"
    (tmp_path / "filled").unlink()
    waiting = start(tmp_path, 1, hold=0)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(1)
    sharing.kill()
    sharing.communicate()
    assert alone(waiting) == "True"


def test_the_first_fills_the_cache_and_those_who_waited_then_share(tmp_path):
    (tmp_path / "go").touch()
    first = start(tmp_path, 0, hold=1.0)
    assert first.stdout is not None
    assert first.stdout.readline() == "holding\n"
    others = [start(tmp_path, rank, hold=1.0) for rank in (1, 2)]
    (tmp_path / "filled").touch()
    assert alone(first) == "True"
    assert [alone(each) for each in others] == ["False", "False"]


def test_a_cache_that_a_dead_holder_left_is_swept_alone_however_full_it_was(tmp_path):
    (tmp_path / "turn.lock").write_text("rank 2, pid 7")
    swept: list[str] = []
    left = [True]

    def sweep(holder: str) -> None:
        swept.append(holder)
        left.clear()

    with serial.node_turn(tmp_path, 0, lambda: None, sweep, lambda: bool(left)) as turn:
        assert (turn.alone, swept) == (True, ["rank 2, pid 7"])
    with serial.node_turn(tmp_path, 0, lambda: None, sweep, lambda: True) as turn:
        assert (turn.alone, len(swept)) == (False, 1)
