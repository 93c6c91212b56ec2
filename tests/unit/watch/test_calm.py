"""A run that lives and steps costs few turns; what may be a death costs no delay."""

from __future__ import annotations

from datetime import timedelta

import pytest

from orchestrator.classify import diagnose
from tests.builders import attempt_message, heartbeat_json, run_message
from tests.unit.watch.bench import HELLO, NO_DRIVER, Bench, exit_json


@pytest.fixture
def turns(monkeypatch):
    """The instants of full turns."""
    seen = []

    def counted(snapshot, limits):
        seen.append(snapshot.now)
        return diagnose(snapshot, limits)

    monkeypatch.setattr("orchestrator.watch.runwatch.diagnose", counted)
    return seen


def metrics(step: int) -> dict[str, object]:
    line = {"schema": 1, "kind": "train", "step": step, "loss": 1.0, "step_s": 1.0}
    return {
        "type": "metrics", "run": "dflash", "attempt": 1, "offset": step, "next_offset": step + 1,
        "lines": [line],
    }  # fmt: skip


def test_a_run_that_lives_has_two_turns_a_second_whatever_it_logs(bench, turns):
    bench.live()
    del turns[:]
    for step in range(100):
        bench.clock.sleep(0.1)
        bench.send(metrics(step))
        bench.turn_once()
    assert 18 <= len(turns) <= 22, "over ten seconds"


@pytest.mark.parametrize("is_acting", [True, False])
def test_a_death_is_told_in_the_turn_in_which_it_comes(record, is_acting):
    bench = Bench(record, acting=is_acting)
    bench.live()
    bench.send(attempt_message("exit", exit_json()), run_message(alive=False, spec=bench.spec(1)))
    bench.turn_once()
    assert [text.split(":")[0] for text in bench.told("diagnosis")] == ["dead"]


def test_a_heartbeat_and_a_container_that_stops_are_looked_at_at_once(bench, turns):
    bench.live()
    del turns[:]
    bench.send(attempt_message("heartbeat", heartbeat_json(step=41)))
    bench.turn_once()
    bench.see_container("stopped")
    bench.turn_once(pong=False)
    assert len(turns) == 2


def test_a_hang_is_told_though_nothing_comes_but_pongs(bench):
    bench.live()
    bench.turn(70)
    assert any("hung" in text for text in bench.told("diagnosis")), bench.story()


def test_a_decision_that_waits_is_carried_out_when_it_is_due(record):
    bench = Bench(record, playbook="extends: default\nbackoff: [15s]\njitter: 0\n")
    bench.live()
    bench.die()
    bench.turn(14)
    assert bench.guest.asked("start") == []
    bench.turn(1.1)
    assert bench.guest.asked("start") == [2]


def test_a_clock_that_is_set_back_does_not_hold_up_a_relaunch(record):
    bench = Bench(record, playbook="extends: default\nbackoff: [15s]\njitter: 0\n")
    bench.live()
    bench.die()
    bench.turn(5)
    bench.clock.jump = timedelta(hours=-5)
    bench.turn()
    bench.turn(9)
    assert bench.guest.asked("start") == []
    bench.turn(3)
    assert bench.guest.asked("start") == [2]


def test_a_run_that_comes_back_is_seen_at_once(bench):
    bench.live()
    bench.see_container("frozen")
    bench.turn_once(pong=False)
    bench.send(HELLO, run_message(spec=bench.spec(1)), NO_DRIVER)
    bench.turn_once()
    assert "healthy" in bench.told("state")[-1]
