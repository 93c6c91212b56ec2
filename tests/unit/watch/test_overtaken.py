"""What a watch saw is overtaken: the run moves on, loses its directory, or its log is emptied."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.types.failure import FailureClass, RunState
from orchestrator.wire import pack_bytes
from tests.builders import attempt_message, heartbeat_json, run_message
from tests.unit.watch.bench import Bench, exit_json, refused

CRASH = b'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: boom\n'


def log_message(data: bytes, offset: int, **fields: Any) -> dict[str, Any]:
    body = {"type": "log", "run": "dflash", "attempt": 1, "offset": offset, "data": pack_bytes(data)}
    return {**body, **fields}


# -- it moves on while a stop is on its way


def test_a_stop_says_where_the_run_was_seen_to_stand(bench: Bench):
    bench.live(step=40)
    bench.send(
        {"type": "metrics", "run": "dflash", "attempt": 1, "offset": 0, "next_offset": 90, "lines": []}
    )
    bench.turn(100)
    (stop,) = [request for verb, request in bench.guest.calls if verb == "stop"][:1]
    assert stop["unless_moved"] == {"phase": "train", "step": 40, "metrics_offset": 90, "log_offset": None}


def test_where_printing_is_progress_the_log_counts_too(bench: Bench):
    bench.live(step=0, phase="load")
    bench.send(log_message(b"shard 1 of 8\n", 0))
    bench.turn(3600)
    stop = next(request for verb, request in bench.guest.calls if verb == "stop")
    assert stop["unless_moved"]["log_offset"] == 13


def test_a_run_that_goes_on_before_the_stop_arrives_is_left_alone(bench: Bench):
    bench.live(step=40)
    bench.guest.answer = lambda verb, request: refused("moved")(verb, request) if verb == "stop" else None
    bench.turn(61)
    assert len(bench.guest.asked("stop")) == 1
    bench.send(attempt_message("heartbeat", heartbeat_json(step=41)))
    bench.turn(40)
    assert bench.run.diagnosis is not None
    assert bench.run.diagnosis.state is RunState.HEALTHY
    assert (len(bench.guest.asked("stop")), bench.guest.asked("start")) == (1, [])


# -- its directory is removed


def removed(*pids: int) -> dict[str, Any]:
    alive = {"lock_held": False, "pids": list(pids), "supervisor": False, "session": False}
    gone: dict[str, Any] = {
        "attempts": [],
        "attempt": None,
        "spec": None,
        "attempt_info": None,
        "checkpoint_step": None,
    }
    return {**run_message(), **gone, "alive": alive}


@pytest.mark.parametrize("pids", [(), (7, 8)])
def test_a_run_whose_directory_is_removed_is_blind_and_neither_hung_nor_healthy(bench: Bench, pids):
    bench.live()
    bench.send(removed(*pids))
    bench.turn(300)
    assert bench.run.diagnosis is not None
    assert bench.run.diagnosis.state is RunState.BLIND
    assert ["directory" in text for text in bench.told("blind")] == [True]
    assert all(str(pid) in bench.told("blind")[0] for pid in pids)
    assert bench.guest.calls == []


def test_a_directory_that_comes_back_is_seen_again(bench: Bench):
    bench.live()
    bench.send(removed(7))
    bench.turn()
    bench.live(step=41)
    assert bench.run.diagnosis is not None
    assert bench.run.diagnosis.state is RunState.HEALTHY


def test_another_run_of_its_name_is_told_as_one_and_not_touched(bench: Bench):
    bench.live(3)
    bench.send(removed(), run_message(1, spec=bench.spec(1)))
    bench.turn()
    bench.send(attempt_message("exit", exit_json(1), 1), run_message(1, alive=False))
    bench.turn(100)
    assert bench.guest.calls == []
    assert "another run of this name" in bench.told("blind")[-1]


def test_the_end_of_a_run_stays_its_end_when_its_directory_is_removed(bench: Bench):
    bench.live()
    bench.send(attempt_message("result", {"schema": 1, "step": 100}))
    bench.die(code=0)
    bench.send(removed())
    bench.turn(30)
    assert bench.run.ended == 0
    assert bench.told("blind") == []


# -- its log is emptied


def test_a_death_after_the_log_was_emptied_is_diagnosed_by_what_is_in_it_now(bench: Bench):
    bench.live()
    bench.send(log_message(b"old\n" * 1000, 0))
    bench.turn()
    bench.send(log_message(CRASH, 0, anew=True))
    bench.die()
    assert bench.run.diagnosis is not None
    assert bench.run.diagnosis.failure is FailureClass.PYTHON_EXCEPTION
    assert bench.told("log")[-1] == "ValueError: boom"
    assert bench.run.diagnosis.evidence[0].offset == CRASH.index(b"ValueError")


def test_a_watch_that_begins_after_a_log_was_emptied_tells_what_came_since(bench: Bench, record):
    bench.live()
    bench.send(log_message(b"old\n" * 1000, 0))
    bench.turn(1)
    bench.send(log_message(b"one\n", 0, anew=True))
    bench.turn(1)
    again = Bench(record)
    again.send(log_message(b"one\ntwo\n", 0))
    again.turn()
    assert again.told("log") == ["two"]


def test_what_comes_twice_after_a_cut_is_no_emptied_log(bench: Bench):
    bench.live()
    bench.send(log_message(b"one\n", 0), log_message(b"one\ntwo\n", 0))
    bench.turn()
    assert bench.told("log") == ["one", "two"]


# -- a person goes on with it by hand


def by_hand(attempt: int, *, alive: bool) -> dict[str, Any]:
    held = {"lock_held": alive, "pids": [], "supervisor": False, "session": False}
    return {**run_message(attempt), "spec": None, "attempt_info": None, "alive": held}


def test_an_attempt_that_a_person_began_by_hand_is_not_followed_by_one_of_ours(bench: Bench):
    bench.live()
    bench.die()
    bench.guest.calls.clear()
    bench.send(by_hand(2, alive=True), attempt_message("heartbeat", heartbeat_json(step=41), 2))
    bench.turn(300)
    assert bench.run.ended is None
    bench.send(by_hand(2, alive=False))
    bench.turn(120)
    assert bench.guest.calls == []
    assert bench.told("decision")[-1].startswith("call: attempt 2 was begun by hand")


def test_an_attempt_of_ours_that_never_came_to_life_is_followed_by_the_next(bench: Bench):
    bench.live()
    bench.die()
    bench.send({**by_hand(2, alive=False), "spec": bench.spec(2)})
    bench.turn(120)
    assert bench.guest.asked("start")[-1] == 3
