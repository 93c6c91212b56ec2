"""A log that fills the disk and a lost tmux session are told once, recorded, and never acted on."""

from __future__ import annotations

import pytest

from orchestrator.errors import HostUnreachable
from orchestrator.types.failure import FailureClass, RunState
from tests.builders import run_message
from tests.unit.watch.bench import HELLO, Bench

GB = 10**9


def disk(log: float, free: float, run: str = "dflash") -> dict[str, object]:
    return {
        "type": "disk", "free_bytes": int(free), "total_bytes": 100 * GB, "log_bytes": int(log),
        "logs": {run: int(log)},
    }  # fmt: skip


def grow(bench: Bench, per_hour: float, *, free: float, minutes: int, log: float = 0.0) -> None:
    for minute in range(minutes):
        size = log + per_hour / 60 * minute
        bench.send(disk(size, free - (size - log)))
        bench.turn_once()
        bench.clock.sleep(60.0)


def lose_session(bench: Bench, *, attempt: int = 1, **alive: object) -> None:
    body = {"lock_held": True, "pids": [101], "supervisor": True, "session": False, **alive}
    bench.send({**run_message(attempt, spec=bench.spec(attempt)), "alive": body})
    bench.turn(25)


def recorded(bench: Bench) -> list[FailureClass | None]:
    return [each.failure for each in bench.record.diagnoses(bench.run.row.id)]


def test_a_log_that_fills_the_disk_is_told_once_and_recorded_and_nothing_is_done(bench):
    bench.live()
    grow(bench, 1.2 * GB, free=3.6 * GB, minutes=60)
    (text,) = bench.told("disk")
    assert text.startswith("disk_full - the log grows 1.2 GB/h, and 3.")
    assert "the disk is full in about 2h" in text
    (event,) = [event for event in bench.sink.events if event.kind == "disk"]
    assert event.level.value == "warning"
    assert event.detail["evidence"][0]["role"] == "prediction"
    assert recorded(bench) == [FailureClass.DISK_FULL]
    assert bench.run.notices.forecast is not None
    assert (bench.run.ended, bench.guest.calls, bench.actions()) == (None, [], [])
    assert bench.record.run("dflash").state is RunState.HEALTHY


@pytest.mark.parametrize(("per_hour", "free"), [(1.2 * GB, 500 * GB), (0.0, GB), (0.01 * GB, 5 * GB)])
def test_a_log_that_does_not_fill_the_disk_is_not_told(bench, per_hour, free):
    bench.live()
    grow(bench, per_hour, free=free, minutes=90)
    assert bench.told("disk") == []
    assert bench.run.notices.forecast is None


def test_the_log_of_another_run_on_that_disk_is_not_told_of_this_one(bench):
    bench.live()
    for minute in range(60):
        bench.send(disk(minute * 20e6, 3.6 * GB - minute * 20e6, run="other"))
        bench.turn_once()
        bench.clock.sleep(60.0)
    assert bench.told("disk") == []


def test_what_grew_while_the_stream_was_away_is_no_rate(bench):
    bench.live()
    for hour in range(6):
        bench.send(HELLO, disk(hour * GB, 4 * GB - hour * GB / 2))
        bench.turn_once()
        bench.lose(HostUnreachable("pve: timed out"))
        bench.turn(3600, pong=False)
    assert bench.told("disk") == []


def test_a_lost_session_is_told_once_and_nothing_is_done(bench):
    bench.live()
    for _ in range(2):
        lose_session(bench)
    (text,) = bench.told("session")
    assert text.startswith("session_lost - its tmux session is gone; the trainer lives")
    assert recorded(bench) == [FailureClass.SESSION_LOST]
    assert (bench.run.ended, bench.guest.calls) == (None, [])
    assert bench.run.diagnosis is not None
    assert bench.run.diagnosis.state is RunState.HEALTHY


def test_a_watch_that_is_restarted_does_not_tell_it_again(bench):
    bench.live()
    lose_session(bench)
    again = Bench(bench.record)
    again.live()
    lose_session(again)
    assert again.told("session") == []
    assert len(recorded(again)) == 1


def test_a_session_of_the_next_attempt_that_is_lost_too_is_told_of_that_one(bench):
    bench.live()
    lose_session(bench)
    bench.live(attempt=2)
    lose_session(bench, attempt=2)
    assert [event.attempt for event in bench.sink.events if event.kind == "session"] == [1, 2]


@pytest.mark.parametrize(
    "alive",
    [
        {"session": True},
        {"session": None},
        {"supervisor": False},
        {"pids": []},
        {"pids": [], "lock_held": False},
    ],
    ids=["there", "tmux could not be asked", "unsupervised says it already", "about to end", "dead"],
)
def test_a_session_that_is_there_or_of_which_nothing_is_known_is_not_told(bench, alive):
    bench.live()
    lose_session(bench, **alive)
    assert bench.told("session") == []


def test_a_session_that_a_relaunch_takes_down_and_makes_again_is_not_told(bench):
    bench.live()
    body = {"lock_held": True, "pids": [101], "supervisor": True, "session": False}
    bench.send({**run_message(1, spec=bench.spec(1)), "alive": body})
    bench.turn(5)
    bench.send({**run_message(1, spec=bench.spec(1)), "alive": {**body, "session": True}})
    bench.turn(60)
    assert bench.told("session") == []
