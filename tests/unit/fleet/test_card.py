from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from orchestrator.clock import timestamp
from orchestrator.errors import HostUnreachable
from orchestrator.fleet.card import card_of
from orchestrator.fleet.past import card_of_past, needs_past, read_known, remembered
from orchestrator.record import Record
from orchestrator.types.decision import ActKind
from orchestrator.types.failure import Diagnosis, FailureClass, RunState
from tests.builders import NOW, ago, attempt_message, heartbeat_json, run_message
from tests.unit.fleet.test_board import make_card
from tests.unit.watch.bench import HELLO, Bench

if TYPE_CHECKING:
    from collections.abc import Iterator

GPU = {
    "type": "gpu", "source": "nvml",
    "gpus": [{"index": 0, "memory_used_bytes": 5 << 30, "processes": [{"pid": 7}]}, {"index": 1}],
}  # fmt: skip


@pytest.fixture
def bench(tmp_path) -> Iterator[Bench]:
    with Record.open(tmp_path / "r.sqlite3") as record:
        yield Bench(record)


def test_of_a_run_that_is_over_the_record_tells_how_it_ended(tmp_path):
    with Record.open(tmp_path / "r.sqlite3") as record:
        row = record.save_run("done", {}, "pve/200", {}, NOW)
        assert card_of_past(row, None, None).has_ended
        record.save_attempt(row.id, 1, started_at=ago(99), ended_at=ago(50))
        record.save_attempt(row.id, 2, started_at=ago(40), ended_at=NOW, last_step=60, checkpoint_step=55)
        found = Diagnosis(
            state=RunState.FINISHED, failure=FailureClass.COMPLETED, summary="finished at step 60"
        )
        record.diagnosis(row.id, 2, found, NOW)
        (row,) = record.runs()
        card = card_of_past(row, record.attempts(row.id)[-1], record.latest_diagnosis(row.id))
    assert (card.state, card.attempt, card.step, card.checkpoint_step) == (RunState.FINISHED, 2, 60, 55)
    assert (card.summary, card.failure) == ("finished at step 60", FailureClass.COMPLETED)
    assert (card.started_at, card.looked_at) == (ago(40), None)


def test_of_a_run_that_nobody_reaches_the_record_tells_the_last_that_was_known(bench):
    row, record = bench.run.row, bench.record
    record.save_attempt(row.id, 1, started_at=ago(99), ended_at=ago(50), last_step=9)
    record.save_attempt(row.id, 2, started_at=ago(40), checkpoint_step=30)
    line = {"kind": "train", "step": 32, "at": timestamp(ago(20)), "loss": 2.5}
    record.add_metrics(row.id, 2, [line], NOW)
    bench.lose(HostUnreachable("no route to host"))
    bench.turn(pong=False)
    card = card_of(bench.run)
    assert needs_past(card)
    card = remembered(card, read_known(record, row))
    assert (card.state, card.attempt, card.step, card.checkpoint_step) == (RunState.BLIND, 2, 32, 30)
    assert (card.loss, card.started_at, card.known_at, card.looked_at) == (2.5, ago(40), ago(20), None)
    assert (card.eta_s, card.tokens_per_s, card.summary) == (None, None, "")
    assert card.is_stale(NOW)


def test_what_this_watch_saw_itself_needs_no_record(bench):
    assert not needs_past(card_of(bench.run)), "nobody has looked yet"
    bench.live()
    assert not needs_past(card_of(bench.run))
    bench.lose(HostUnreachable("no route to host"))
    bench.turn(pong=False)
    assert not needs_past(card_of(bench.run)), "what it saw is newer"


def test_what_is_remembered_names_a_death_but_no_warning(bench):
    row, record = bench.run.row, bench.record
    record.save_attempt(row.id, 1, started_at=ago(99))
    for state, expected in ((RunState.HEALTHY, None), (RunState.DEAD, FailureClass.OOM_CUDA)):
        record.diagnosis(
            row.id, 1, Diagnosis(state=state, failure=FailureClass.OOM_CUDA, summary="s"), ago(9)
        )
        assert read_known(record, row).failure is expected


def test_of_a_run_that_was_never_seen_nothing_is_remembered(bench):
    known = read_known(bench.record, bench.run.row)
    assert (known.attempt, known.step, known.known_at) == (None, None, None)


def test_before_a_look_nothing_is_known(bench):
    card = card_of(bench.run)
    assert (card.state, card.attempt, card.step, card.looked_at, card.has_ended) == (
        RunState.NEW,
        None,
        None,
        None,
        False,
    )
    assert card.blind is None  # new is not blind


def test_a_run_that_trains(bench):
    beat = heartbeat_json(step=40, total_steps=100, loss=2.5, tokens_per_s=1200.0, step_s=0.5)
    message = run_message()
    message["spec"]["gpus"] = [1]
    bench.send(HELLO, message, attempt_message("heartbeat", beat), GPU)
    bench.turn()
    card = card_of(bench.run)
    assert (card.state, card.phase, card.step, card.total_steps) == (RunState.HEALTHY, "train", 40, 100)
    assert (card.loss, card.tokens_per_s, card.attempt, card.checkpoint_step) == (2.5, 1200.0, 1, 25)
    assert card.eta_s == pytest.approx(30.0)
    assert card.blind is None
    assert not card.is_stale(bench.clock.now())
    assert [each.is_own for each in card.gpus] == [False, True]
    assert card.gpus[0].gpu.pids == (7,)


def test_a_container_whose_clock_is_off_is_shown_by_the_near_clock(bench):
    late = {**HELLO, "now": NOW.timestamp() + 180.0}
    message = run_message()
    message["attempt_info"]["started_at"] = "2026-11-29T12:02:00.000000Z"
    bench.send(late, message)
    bench.turn()
    card = card_of(bench.run)
    assert card.clock_skew_s == pytest.approx(180.0)
    assert card.started_at == NOW - timedelta(seconds=60)
    assert card.age_s(bench.clock.now()) == pytest.approx(0.0, abs=1.0)


def test_a_death_shows_its_class_and_what_comes_next(bench):
    bench.send(HELLO, run_message(), attempt_message("heartbeat", heartbeat_json()))
    bench.turn()
    bench.die()
    card = card_of(bench.run)
    assert card.state is RunState.DEAD
    assert card.eta_s is None
    assert card.next_act is not None
    assert card.next_act.kind is not ActKind.NONE
    assert card.next_act.reason


def test_a_cut_keeps_what_was_seen_and_says_that_it_is_of_the_past(bench):
    bench.send(HELLO, run_message(), attempt_message("heartbeat", heartbeat_json(step=40)))
    bench.turn()
    bench.lose(HostUnreachable("no route to host"))
    bench.turn()
    card = card_of(bench.run)
    assert card.blind is not None
    assert "no route to host" in card.blind
    assert card.step == 40
    assert card.is_stale(bench.clock.now())


def test_a_next_attempt_is_not_blind_until_it_was_looked_at(bench):
    bench.live()
    seen = []
    for message in (
        attempt_message("heartbeat", heartbeat_json(step=1), 2),
        run_message(2, spec=bench.spec(2)),
    ):
        bench.send(message)
        bench.watcher.turn()
        seen.append(card_of(bench.run))
    assert [(card.attempt, card.blind) for card in seen] == [(2, None), (2, None)]
    assert [card.state for card in seen] == [RunState.NEW, RunState.HEALTHY]


def test_a_run_that_stands_still_has_no_rate_and_no_time_to_its_end(bench):
    bench.live(step=40, total_steps=100, step_s=0.5, tokens_per_s=1200.0)
    first = card_of(bench.run)
    assert first.moved_at == first.looked_at
    bench.turn(29)
    card = card_of(bench.run)
    assert card.eta_s == pytest.approx(30.0), "it may yet be a slow step"
    assert card.tokens_per_s == 1200.0
    bench.turn(10)
    card = card_of(bench.run)
    assert card.state is RunState.HEALTHY
    assert (card.eta_s, card.tokens_per_s, card.moved_at) == (None, None, first.moved_at)
    assert card.is_overdue(bench.clock.now())
    bench.live(step=41, total_steps=100, step_s=0.5, tokens_per_s=1100.0)
    card = card_of(bench.run)
    assert card.eta_s == pytest.approx(29.5)
    assert card.tokens_per_s == 1100.0
    assert card.moved_at == bench.clock.now()


def test_a_slow_step_another_phase_and_an_end_are_not_overdue():
    fields = {"phase": "train", "step": 3, "step_s": 20.0, "moved_at": ago(199)}
    assert not make_card(**fields).is_overdue(NOW)
    assert make_card(**{**fields, "moved_at": ago(201)}).is_overdue(NOW)
    untimed = {**fields, "step_s": None}
    assert not make_card(**{**untimed, "moved_at": ago(119)}).is_overdue(NOW)
    assert make_card(**untimed).is_overdue(NOW)
    for changes in (
        {"phase": "checkpoint"},
        {"has_ended": True},
        {"state": RunState.DEAD},
        {"moved_at": None},
    ):
        assert not make_card(**{**untimed, **changes}).is_overdue(NOW), changes


def test_what_is_old_is_stale_unless_the_run_has_ended():
    assert make_card(looked_at=ago(11)).is_stale(NOW)
    assert not make_card(looked_at=ago(9)).is_stale(NOW)
    assert not make_card(looked_at=ago(999), has_ended=True).is_stale(NOW)
    assert make_card(looked_at=ago(-60)).age_s(NOW) == 0.0  # a clock that was set back
