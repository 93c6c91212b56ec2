"""What is thought of a run: when a decision is kept over a cut, and when it is the end."""

from __future__ import annotations

from datetime import timedelta

import pytest

from orchestrator.errors import Exit
from orchestrator.launch import RELAUNCH_REASON
from orchestrator.types.decision import ActKind, Decision
from orchestrator.types.failure import Diagnosis, FailureClass, RunState
from orchestrator.watch.verdict import Verdict
from tests.builders import NOW

HEALTHY = Diagnosis(state=RunState.HEALTHY, failure=None, summary="trains")
BLIND = Diagnosis(state=RunState.BLIND, failure=None, summary="no way there")
HUNG = Diagnosis(state=RunState.HUNG, failure=FailureClass.HANG, summary="no step", fingerprint="h")
HANG_DEAD = Diagnosis(state=RunState.DEAD, failure=FailureClass.HANG, summary="stopped", fingerprint="s")
DEAD = Diagnosis(state=RunState.DEAD, failure=FailureClass.OOM_CUDA, summary="no room", fingerprint="f")
OTHER = Diagnosis(state=RunState.DEAD, failure=FailureClass.NAN_LOSS, summary="NaN", fingerprint="n")
STOPPED = Diagnosis(state=RunState.STOPPED, failure=None, summary="stopped")
LATER = NOW + timedelta(seconds=30)
RELAUNCH = Decision(kind=ActKind.RELAUNCH, reason="again", not_before=LATER)


def seen(*diagnoses: Diagnosis, decision: Decision | None = RELAUNCH, acting: bool = True) -> Verdict:
    """The first is decided upon; the others are only seen."""
    verdict = Verdict()
    for place, diagnosis in enumerate(diagnoses):
        verdict.note(diagnosis, None)
        if place == 0 and decision is not None:
            verdict.decide(1, decision, acting=acting)
    return verdict


def test_the_same_sight_is_no_news_and_keeps_its_decision():
    verdict = seen(DEAD)
    assert not verdict.note(DEAD, None)
    assert verdict.decision is RELAUNCH
    assert not verdict.wants_decision


def test_a_decision_is_taken_up_again_after_a_cut_and_its_wait_does_not_begin_anew():
    verdict = seen(DEAD, BLIND)
    assert verdict.decision is None
    verdict.note(DEAD, None)
    assert verdict.resume(1, None) is not None
    assert verdict.decision is RELAUNCH


@pytest.mark.parametrize(
    ("between", "attempt", "then"),
    [(HEALTHY, 1, DEAD), (BLIND, 2, DEAD), (BLIND, 1, OTHER)],
    ids=["it lived meanwhile", "another attempt", "another cause"],
)
def test_a_decision_for_another_sight_is_not_taken_up(between, attempt, then):
    verdict = seen(DEAD, between, then)
    assert verdict.resume(attempt, None) is None
    assert verdict.decision is None


@pytest.mark.parametrize(("stop_by", "is_kept"), [("watch", True), ("user", False), (None, False)])
def test_a_hang_that_the_watch_stopped_is_still_to_be_relaunched(stop_by, is_kept):
    verdict = seen(HUNG, HANG_DEAD)
    assert (verdict.resume(1, stop_by) is not None) is is_kept
    assert (verdict.decision is RELAUNCH) is is_kept


def test_a_relaunch_is_due_at_its_instant_and_a_clock_set_back_does_not_put_it_off():
    verdict = seen(DEAD)
    assert verdict.due(NOW) is None
    assert verdict.due(LATER) is RELAUNCH
    verdict.set_back(timedelta(hours=1))
    assert verdict.due(LATER - timedelta(hours=1, seconds=1)) is None
    assert verdict.due(LATER - timedelta(hours=1)) is not None
    verdict.note(BLIND, None)
    verdict.note(DEAD, None)
    verdict.resume(1, None)
    assert verdict.due(LATER - timedelta(hours=1)) is not None, "the kept one was moved too"


@pytest.mark.parametrize(
    ("diagnosis", "kind", "acting", "code"),
    [
        (DEAD, ActKind.RELAUNCH, True, None),
        (DEAD, ActKind.RELAUNCH, False, Exit.FAILED),
        (DEAD, ActKind.NONE, True, Exit.FAILED),
        (DEAD, ActKind.CALL, True, Exit.NEEDS_PERSON),
        (DEAD, ActKind.GIVE_UP, True, Exit.GAVE_UP),
        (HUNG, ActKind.WAIT, True, None),
        (HUNG, ActKind.RELAUNCH, False, Exit.HUNG),
        (HUNG, ActKind.CALL, False, Exit.NEEDS_PERSON),
    ],
)
def test_what_is_the_end_of_a_watch(diagnosis, kind, acting, code):
    verdict = seen(diagnosis, decision=Decision(kind=kind, reason="so"), acting=acting)
    assert verdict.ended is code
    assert verdict.is_open is (code is None or diagnosis is HUNG)


def test_a_stop_by_its_user_is_the_end_but_not_one_that_a_relaunch_follows():
    verdict = Verdict()
    verdict.note(STOPPED, "had enough")
    assert verdict.ended is Exit.NOT_RUNNING
    verdict.forget()
    verdict.note(STOPPED, RELAUNCH_REASON)
    assert verdict.ended is None
    assert not verdict.wants_decision


@pytest.mark.parametrize("diagnosis", [HEALTHY, BLIND])
def test_nothing_is_to_be_decided_of_what_lives_or_cannot_be_seen(diagnosis):
    verdict = seen(diagnosis, decision=None)
    assert not verdict.wants_decision
    assert (verdict.ended, verdict.is_told_dead, verdict.hangs) == (None, False, False)


def test_a_decision_that_cannot_be_carried_out_makes_room_for_another():
    verdict = seen(DEAD)
    call = Decision(kind=ActKind.CALL, reason="the container has another user's run")
    verdict.overrule(call, acting=True)
    assert (verdict.decision, verdict.ended) == (call, Exit.NEEDS_PERSON)
