"""What is done beside the drawing: in order, one of a kind, and never in the way."""

from __future__ import annotations

import threading
import time

from orchestrator.tui.errands import Errands


def wait(errands: Errands) -> None:
    deadline = time.monotonic() + 60
    while not errands.is_idle and time.monotonic() < deadline:
        errands.take_in()
        time.sleep(0.005)
    assert errands.is_idle


def test_what_it_yields_is_taken_in_by_the_caller_and_in_order():
    errands, got, threads = Errands(), list[int](), set()

    def take(each: int) -> None:
        got.append(each)
        threads.add(threading.current_thread())

    assert errands.begin("a", lambda: iter((1, 2, 3)), take, lambda error: None)
    wait(errands)
    assert got == [1, 2, 3]
    assert threads == {threading.current_thread()}


def test_one_of_a_kind_at_a_time_and_others_beside_it():
    got: list[str] = []
    errands, goes_on = Errands(), threading.Event()

    def slow():
        assert goes_on.wait(60)
        yield "slow"

    assert errands.begin("a", slow, got.append, lambda error: None)
    assert not errands.begin("a", lambda: iter(["second"]), got.append, lambda error: None)
    assert errands.begin("b", lambda: iter(["quick"]), got.append, lambda error: None)
    deadline = time.monotonic() + 60
    while got != ["quick"] and time.monotonic() < deadline:
        errands.take_in()
    goes_on.set()
    wait(errands)
    assert got == ["quick", "slow"]
    assert errands.begin("a", lambda: iter(["again"]), got.append, lambda error: None)
    wait(errands)
    assert got[-1] == "again"


def test_a_fault_is_told_after_what_came_before_it_and_the_kind_is_free_again():
    errands, got = Errands(), []

    def broken():
        yield "some"
        raise OSError("gone")

    errands.begin("a", broken, got.append, lambda error: got.append(str(error)))
    wait(errands)
    assert got == ["some", "gone"]
    assert errands.begin("a", lambda: iter(()), got.append, lambda error: None)
