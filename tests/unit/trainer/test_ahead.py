import subprocess
import sys
import threading
import traceback
import weakref

import pytest

from trainer import ahead
from trainer.ahead import Ahead

LONG_S = 20.0


class Thing:
    def __init__(self, index: int) -> None:
        self.index = index


class Maker:
    """Remembers what it made and where; stops before an index of `gates` until that is opened."""

    def __init__(self, *gated: int) -> None:
        self.gates = {index: threading.Event() for index in gated}
        self.begun = {index: threading.Event() for index in gated}
        self.made: list[int] = []
        self.threads: set[str] = set()

    def __call__(self, index: int) -> Thing:
        if index in self.gates:
            self.begun[index].set()
            assert self.gates[index].wait(LONG_S)
        self.threads.add(threading.current_thread().name)
        if index < 0:
            raise ValueError(f"no {index}")
        self.made.append(index)
        return Thing(index)


@pytest.fixture
def made():
    """Makers with what takes from them; all closed in the end."""
    opened = []

    def begin(*gated):
        maker = Maker(*gated)
        opened.append(Ahead(maker))
        return maker, opened[-1]

    yield begin
    for each in opened:
        each.close()


def test_whatever_is_asked_for_comes_in_any_order_and_from_one_thread(made):
    maker, things = made()
    asked = [(3, [4]), (4, [5]), (9, [3]), (3, []), (4, [4]), (4, [7, 8]), (8, [7])]
    assert [things.take(index, upcoming).index for index, upcoming in asked] == [3, 4, 9, 3, 4, 4, 8]
    assert maker.threads == {"read-ahead"}


def test_what_comes_next_is_made_before_it_is_taken_and_no_more_than_that(made):
    maker, things = made(2)
    things.take(1, [2])
    assert maker.begun[2].wait(LONG_S), "nobody has taken it yet"
    maker.gates[2].set()
    assert things.take(2).index == 2
    things.close()
    assert maker.made == [1, 2], "once each, and nothing that was not asked for"


def test_what_is_not_begun_is_not_made_when_it_is_forgotten(made):
    maker, things = made(1)
    things.take(0, [1, 2])
    assert maker.begun[1].wait(LONG_S)
    things.discard()
    maker.gates[1].set()
    assert things.take(3).index == 3
    assert maker.made == [0, 1, 3]


def test_another_index_than_was_expected_drops_what_was_asked_for(made):
    maker, things = made(1)
    things.take(0, [1, 2])
    assert maker.begun[1].wait(LONG_S)
    maker.gates[1].set()
    assert things.take(7, [8]).index == 7
    assert things.take(8).index == 8
    assert maker.made == [0, 1, 7, 8]


def test_an_error_comes_where_it_is_taken_with_its_own_traceback_and_the_next_is_made(made):
    _, things = made()
    assert things.take(1, [-2]).index == 1
    with pytest.raises(ValueError, match="no -2") as caught:
        things.take(-2, [3])
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-1] == "__call__", "where it was raised, in the other thread"
    assert "take" in names
    assert things.take(3).index == 3


def test_nothing_of_what_was_taken_is_kept(made):
    _, things = made()
    thing = things.take(1, [2])
    gone, ahead_of_us = weakref.ref(thing), weakref.ref(things.take(2))
    del thing
    things.close()
    assert gone() is None
    assert ahead_of_us() is None


def test_an_end_waits_for_what_is_being_made_but_not_for_ever(made, monkeypatch):
    maker, things = made(1)
    things.take(0, [1])
    assert maker.begun[1].wait(LONG_S)
    monkeypatch.setattr(ahead, "CLOSE_S", 0.01)
    things.close()
    maker.gates[1].set()
    monkeypatch.undo()
    things.close()
    assert "read-ahead" not in {thread.name for thread in threading.enumerate() if thread.is_alive()}


def test_what_was_never_taken_from_has_no_thread_to_end():
    Ahead(Maker()).close()


def test_waiting_is_counted(made):
    pause_s = 0.05
    maker, things = made(1)
    opener = threading.Timer(pause_s, maker.gates[1].set)
    opener.start()
    things.take(1)
    opener.join()
    assert things.waited_s >= pause_s / 2


PROGRAM = """
import os, sys
from trainer.ahead import Ahead
hangs = os.pipe()[0]
things = Ahead(lambda index: os.read(hangs, 1) if index else index)
things.take(0, [1])
raise KeyboardInterrupt if sys.argv[1] == "interrupt" else SystemExit(3)
"""


@pytest.mark.parametrize(("how", "code"), [("exit", 3), ("interrupt", -2)])
def test_a_process_ends_with_its_own_code_though_a_disk_hangs_and_nobody_closed(how, code):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, timeout=LONG_S, check=False
    )
    assert done.returncode == code, done.stderr
