"""Decisions: who may be relaunched, how often, when, and with what."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.decide import decide
from orchestrator.playbook import Playbook, parse
from orchestrator.types.decision import ActKind, Decision, History, PastAttempt, Remedy, RemedyKind
from orchestrator.types.failure import Diagnosis, FailureClass, RunState
from orchestrator.types.seen import Absent, LastWords, Present
from orchestrator.types.snapshot import LogReading, Snapshot
from tests.builders import NOW, ago, make_heartbeat, make_snapshot

FX = "fx_trace_race: using fx"
PLAYBOOK = parse(
    """
extends: default
backoff: [10s, 20s, 40s]
jitter: 0.1
max_attempts_per_day: 50
crash_loop: {deaths: 6, within: 1m}
allow: {data.batch_rows: {minimum: 1}, draft.tied: {}}
rules:
  fx_trace_race:
    act: relaunch
    attempts: 3
    why: It is a race, so the same run often passes.
  oom_cuda:
    act: relaunch_with
    why: The GPU was full, and less at a time may fit.
    ladder:
      - why: The same again, in case another process held the card.
      - why: Half the windows in a step.
        set: {data.batch_rows: 2}
      - why: One window and no fragments.
        set: {data.batch_rows: 1, draft.tied: true}
        env: {PYTORCH_CUDA_ALLOC_CONF: "expandable_segments:True"}
""",
    "test.yaml",
)
RELAUNCHES = (ActKind.RELAUNCH, ActKind.RELAUNCH_WITH)


def died(failure: FailureClass = FailureClass.FX_TRACE_RACE, fingerprint: str | None = FX) -> Diagnosis:
    return Diagnosis(state=RunState.DEAD, failure=failure, summary="died", fingerprint=fingerprint)


def past(attempt: int, checkpoint: int | None = None, **changes: Any) -> PastAttempt:
    fields: dict[str, Any] = {
        "attempt": attempt,
        "failure": FailureClass.FX_TRACE_RACE,
        "fingerprint": FX,
        "started_at": ago(90_000 - attempt * 600),
        "ended_at": ago(89_700 - attempt * 600),
        "first_step": 0,
        "last_step": 30 + attempt,
        "checkpoint_step": checkpoint,
    }
    return PastAttempt(**{**fields, **changes})


def now_at(attempt: int, checkpoint: int | None = None, **heartbeat: Any) -> Snapshot:
    beat = make_heartbeat(**{"checkpoint_step": checkpoint, **heartbeat})
    return make_snapshot(attempt=attempt, heartbeat=Present(beat))


def judge(
    snapshot: Snapshot,
    *attempts: PastAttempt,
    diagnosis: Diagnosis | None = None,
    playbook: Playbook = PLAYBOOK,
    jitter: float = 0.0,
    now: datetime = NOW,
) -> Decision:
    return decide(diagnosis or died(), playbook, History(attempts=attempts), snapshot, now, jitter)


def wait_s(decision: Decision) -> float:
    assert decision.not_before is not None
    return (decision.not_before - NOW).total_seconds()


@given(
    st.sampled_from([state for state in RunState if state not in (RunState.DEAD, RunState.HUNG)]),
    st.sampled_from([None, *FailureClass]),
    st.integers(min_value=0, max_value=4),
    st.floats(min_value=-1, max_value=1),
)
def test_only_a_dead_or_hung_run_is_ever_relaunched(
    state: RunState, failure: FailureClass | None, num_past: int, jitter: float
):
    found = Diagnosis(state=state, failure=failure, summary="", fingerprint="x")
    attempts = [past(n) for n in range(1, num_past + 1)]
    decision = judge(now_at(num_past + 1), *attempts, diagnosis=found, jitter=jitter)
    assert decision.kind in (ActKind.NONE, ActKind.WAIT)
    assert decision.not_before is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, 0, 50, 100]),
            st.sampled_from([None, 40]),
            st.sampled_from(["a", "b"]),
            st.booleans(),
        ),
        max_size=12,
    ),
    st.sampled_from(list(FailureClass)),
)
def test_a_decision_always_comes_and_never_exceeds_its_budget(
    rows: list[tuple[int | None, int | None, str, bool]], failure: FailureClass
):
    attempts = [
        past(n, checkpoint, last_step=last, fingerprint=fingerprint, by_watch=by_watch)
        for n, (checkpoint, last, fingerprint, by_watch) in enumerate(rows, 1)
    ]
    decision = judge(now_at(len(rows) + 1), *attempts, diagnosis=died(failure, "a"))
    assert decision.reason
    if decision.kind in RELAUNCHES:
        assert decision.attempts_left is not None
        assert 0 <= decision.attempts_left < PLAYBOOK.rule(failure).attempts
        assert wait_s(decision) > 0


def test_the_first_death_is_relaunched_after_the_first_wait():
    decision = judge(now_at(1))
    assert decision.kind is ActKind.RELAUNCH
    assert wait_s(decision) == 10
    assert decision.attempts_left == 2
    assert "relaunch 1 of 3" in decision.reason
    assert "race" in decision.reason


def test_waits_grow_with_failures_in_a_row_and_the_last_one_repeats():
    waits = [
        wait_s(judge(now_at(n), *[past(i, fingerprint=str(i)) for i in range(1, n)])) for n in range(1, 6)
    ]
    assert waits == [10, 20, 40, 40, 40]


@pytest.mark.parametrize(("jitter", "seconds"), [(-1.0, 9.0), (0.0, 10.0), (1.0, 11.0), (9.0, 11.0)])
def test_jitter_moves_the_wait_within_its_share(jitter: float, seconds: float):
    assert wait_s(judge(now_at(1), jitter=jitter)) == pytest.approx(seconds)


def test_the_budget_of_a_fingerprint_ends():
    kinds = [judge(now_at(n), *[past(i) for i in range(1, n)]).kind for n in range(1, 6)]
    assert kinds == [ActKind.RELAUNCH] * 3 + [ActKind.GIVE_UP] * 2


def test_another_fingerprint_has_a_budget_of_its_own():
    others = [past(i, fingerprint="signal_exit: sigkill") for i in range(1, 4)]
    assert judge(now_at(4), *others).attempts_left == 2


def test_an_advancing_checkpoint_refills_the_budget():
    spent = [past(1), past(2), past(3)]
    assert judge(now_at(4), *spent).kind is ActKind.GIVE_UP
    refilled = judge(now_at(4, checkpoint=50), *spent)
    assert refilled.kind is ActKind.RELAUNCH
    assert (refilled.attempts_left, wait_s(refilled)) == (2, 10)


def test_the_same_checkpoint_again_refills_nothing():
    assert judge(now_at(4, checkpoint=50), past(1, 50), past(2, 50), past(3, 50)).kind is ActKind.GIVE_UP


def test_time_refills_nothing():
    long_ago = [past(i, ended_at=ago(9e6), started_at=ago(9e6)) for i in range(1, 4)]
    assert judge(now_at(4), *long_ago).kind is ActKind.GIVE_UP


def test_the_relaunch_after_progress_is_charged():
    decision = judge(now_at(3, checkpoint=50), past(1), past(2, 50))
    assert (decision.attempts_left, wait_s(decision)) == (1, 20)


def test_unknown_progress_neither_refills_nor_spends():
    unknown = [past(i, last_step=None) for i in range(1, 5)]
    decision = judge(now_at(5), *unknown)
    assert (decision.kind, decision.attempts_left) == (ActKind.RELAUNCH, 2)
    assert "relaunch 1 of 3 for this cause (beside 4 of which no step is known), " in decision.reason
    assert "beside" not in judge(now_at(2), past(1)).reason
    spent = [past(1), past(2), past(3), past(4, last_step=None)]
    assert judge(now_at(5), *spent).kind is ActKind.GIVE_UP


def test_a_crash_loop_calls_a_person_even_when_nothing_is_spent():
    quick = [past(i, last_step=None, ended_at=ago(50 - i)) for i in range(1, 6)]
    decision = judge(now_at(6), *quick)
    assert decision.kind is ActKind.CALL
    assert "crash loop: 6 deaths within 1m" in decision.reason


def test_slow_deaths_are_no_crash_loop():
    slow = [past(i, last_step=None, ended_at=ago(500 - i)) for i in range(1, 6)]
    assert judge(now_at(6), *slow).kind is ActKind.RELAUNCH


def test_deaths_with_progress_between_them_are_no_crash_loop():
    quick = [past(i, i * 50, ended_at=ago(50 - i)) for i in range(1, 6)]
    assert judge(now_at(6, checkpoint=300), *quick).kind is ActKind.RELAUNCH


def test_a_day_has_a_ceiling_whatever_progresses():
    playbook = parse("extends: default\nmax_attempts_per_day: 3\n", "p.yaml")
    recent = [past(i, i * 50, started_at=ago(3600 * i), ended_at=ago(3600 * i)) for i in range(1, 4)]
    assert judge(now_at(4, checkpoint=900), *recent, playbook=playbook).kind is ActKind.GIVE_UP
    older = [past(i, i * 50, started_at=ago(86_400 + i)) for i in range(1, 4)]
    assert judge(now_at(4, checkpoint=900), *older, playbook=playbook).kind is ActKind.RELAUNCH


def test_the_ceiling_counts_the_attempt_that_died_and_is_told_before_it_is_reached():
    playbook = parse("extends: default\nmax_attempts_per_day: 3\n", "p.yaml")
    recent = [past(i, i * 50, started_at=ago(3600 * i), ended_at=ago(3600 * i)) for i in range(1, 3)]
    second = judge(now_at(2, checkpoint=100), recent[0], playbook=playbook)
    assert second.kind is ActKind.RELAUNCH
    assert "attempt 3 of at most 3 in 24 hours" in second.reason
    third = judge(now_at(3, checkpoint=150), *recent, playbook=playbook)
    assert (third.kind, "3 attempts in 24 hours; the playbook allows 3" in third.reason) == (
        ActKind.GIVE_UP,
        True,
    )


def test_an_attempt_that_began_before_the_day_counts_for_nothing():
    playbook = parse("extends: default\nmax_attempts_per_day: 1\n", "p.yaml")
    snapshot = replace(now_at(1), started_at=ago(90_000))
    assert judge(snapshot, playbook=playbook).kind is ActKind.RELAUNCH
    assert judge(replace(snapshot, started_at=ago(80_000)), playbook=playbook).kind is ActKind.GIVE_UP


def test_the_shipped_ceiling_is_twelve_attempts_a_day():
    assert parse("extends: default\n", "p.yaml").max_attempts_per_day == 12


def test_a_crash_loop_is_told_with_its_history():
    quick = [past(i, last_step=None, ended_at=ago(50 - i)) for i in range(1, 4)]
    quick += [past(i, failure=FailureClass.HANG, last_step=41, ended_at=ago(50 - i)) for i in (4, 5)]
    reason = judge(now_at(6), *quick).reason
    assert "(attempts 1 to 3: fx_trace_race; attempts 4 to 5: hang at step 41; then this one)" in reason


def test_a_rule_may_call_a_person_once_its_budget_is_spent():
    rule = "{act: relaunch, attempts: 1, then: call, why: It may be the moment.}"
    playbook = parse(f"extends: default\nrules:\n  hang: {rule}\n", "p.yaml")
    hung = died(FailureClass.HANG, "hang: train")
    before = past(1, failure=FailureClass.HANG, fingerprint="hang: train")
    assert judge(now_at(1), diagnosis=hung, playbook=playbook).kind is ActKind.RELAUNCH
    called = judge(now_at(2), before, diagnosis=hung, playbook=playbook)
    assert (called.kind, called.attempts_left) == (ActKind.CALL, 0)


def test_a_trace_race_restores_the_compile_cache_once_and_then_calls_a_person():
    playbook = parse("extends: default\n", "p.yaml")
    first = judge(now_at(1), playbook=playbook)
    assert (first.kind, first.remedies) == (ActKind.RELAUNCH, (Remedy(RemedyKind.RESTORE_CACHE),))
    assert (first.changes, first.env_changes) == ((), ())
    assert judge(now_at(2), past(1), playbook=playbook).kind is ActKind.CALL


REMEDIES = """
rules:
  nan_loss:
    act: relaunch_with
    why: A person allowed it to go back once.
    ladder:
      - {why: Back to the checkpoint before., do: [previous_checkpoint]}
      - {why: Without the step that it died at., do: [skip_batch]}
"""


def test_a_remedy_comes_with_its_step():
    playbook = parse(f"extends: default\n{REMEDIES}", "p.yaml")
    nan = died(FailureClass.NAN_LOSS, "nan")
    first = judge(now_at(1, checkpoint=50, step=63), diagnosis=nan, playbook=playbook)
    assert first.remedies == (Remedy(RemedyKind.PREVIOUS_CHECKPOINT, 50),)
    assert "back to the checkpoint before step 50" in first.reason
    before = past(1, 50, failure=FailureClass.NAN_LOSS, fingerprint="nan")
    second = judge(now_at(2, checkpoint=50, step=63), before, diagnosis=nan, playbook=playbook)
    assert second.remedies == (Remedy(RemedyKind.SKIP_BATCH, 64),)


def test_the_checkpoint_to_set_aside_is_the_newest_on_disk_though_a_heartbeat_is_older():
    playbook = parse(f"extends: default\n{REMEDIES}", "p.yaml")
    nan = died(FailureClass.NAN_LOSS, "nan")
    own = past(1, 60, failure=FailureClass.NAN_LOSS, fingerprint="nan")
    found = judge(now_at(1, checkpoint=50, step=63), own, diagnosis=nan, playbook=playbook)
    assert found.remedies == (Remedy(RemedyKind.PREVIOUS_CHECKPOINT, 60),)


def test_a_checkpoint_that_is_reached_again_after_going_back_refills_nothing():
    playbook = parse(f"extends: default\n{REMEDIES}", "p.yaml")
    nan = died(FailureClass.NAN_LOSS, "nan")
    before = [past(i, 50, failure=FailureClass.NAN_LOSS, fingerprint="nan", rung=i - 2) for i in (1, 2)]
    found = judge(now_at(3, checkpoint=50, step=63), *before, diagnosis=nan, playbook=playbook)
    assert (found.kind, found.attempts_left) == (ActKind.GIVE_UP, 0)


def test_a_remedy_without_what_it_needs_calls_a_person():
    playbook = parse(f"extends: default\n{REMEDIES}", "p.yaml")
    called = judge(now_at(1), diagnosis=died(FailureClass.NAN_LOSS, "nan"), playbook=playbook)
    assert (called.kind, called.reason.split(".")[0]) == (
        ActKind.CALL,
        "no checkpoint is known to go back from",
    )


OOM = "oom_cuda: cuda out of memory"


def oom_at(attempt: int, checkpoint: int | None = None) -> Decision:
    earlier = [past(i, failure=FailureClass.OOM_CUDA, fingerprint=OOM) for i in range(1, attempt)]
    return judge(now_at(attempt, checkpoint), *earlier, diagnosis=died(FailureClass.OOM_CUDA, OOM))


def test_a_ladder_is_climbed_one_rung_a_failure():
    first, second, third, fourth = (oom_at(n) for n in range(1, 5))
    assert (first.rung, first.changes, first.env_changes) == (0, (), ())
    assert (second.rung, second.changes) == (1, (("data.batch_rows", "2"),))
    assert third.changes == (("data.batch_rows", "1"), ("draft.tied", "true"))
    assert third.env_changes == (("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),)
    assert "fragments" in third.reason
    assert fourth.kind is ActKind.GIVE_UP


def test_progress_does_not_climb_down_the_ladder():
    assert oom_at(3, checkpoint=50).rung == 2
    assert oom_at(4, checkpoint=50).kind is ActKind.GIVE_UP


def test_a_failure_that_repeats_at_once_is_not_relaunched_without_steps():
    crash = died(FailureClass.PYTHON_EXCEPTION, "python_exception: keyerror")
    quiet = replace(now_at(1, step=0), log=LogReading(read_bytes=100))
    assert judge(quiet, diagnosis=crash).kind is ActKind.CALL
    resumed = replace(now_at(2, step=50, resumed_from_step=50), log=LogReading(last_step=50))
    assert judge(resumed, diagnosis=crash).kind is ActKind.CALL
    assert judge(now_at(2, step=51, resumed_from_step=50), diagnosis=crash).kind is ActKind.RELAUNCH
    unknown = make_snapshot(heartbeat=Absent())
    assert judge(unknown, diagnosis=crash).kind is ActKind.RELAUNCH  # its log told of step 40


def test_steps_that_an_old_heartbeat_does_not_know_of_are_steps():
    crash = died(FailureClass.PYTHON_EXCEPTION, "python_exception: keyerror")
    quiet = replace(now_at(1, step=0), log=LogReading(read_bytes=100))
    told = replace(quiet, last_words=Present(LastWords(exception="KeyError", message="'x'", step=2)))
    logged = replace(quiet, log=LogReading(read_bytes=100, last_step=2))
    assert judge(told, diagnosis=crash).kind is ActKind.RELAUNCH
    assert judge(logged, diagnosis=crash).kind is ActKind.RELAUNCH
    none_finished = replace(quiet, last_words=Present(LastWords(exception="KeyError", message="'x'", step=0)))
    assert judge(none_finished, diagnosis=crash).kind is ActKind.CALL


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (FailureClass.IMPORT_ERROR, ActKind.CALL),
        (FailureClass.OOM_DENSE_FALLBACK, ActKind.CALL),
        (FailureClass.KILLED_BY_USER, ActKind.NONE),
        (FailureClass.COMPLETED, ActKind.NONE),
        (FailureClass.CONTAINER_STOPPED, ActKind.WAIT),
    ],
)
def test_rules_that_do_not_relaunch_do_not(failure: FailureClass, kind: ActKind):
    decision = judge(now_at(1), diagnosis=died(failure, "x"))
    assert (decision.kind, decision.not_before) == (kind, None)
    assert decision.reason == PLAYBOOK.rule(failure).why


def test_a_hang_is_decided_by_its_rule():
    hung = Diagnosis(state=RunState.HUNG, failure=FailureClass.HANG, summary="", fingerprint="hang: train")
    assert judge(now_at(1), diagnosis=hung).kind is ActKind.RELAUNCH


def test_a_person_who_launched_it_again_starts_a_new_count():
    spent = [past(1), past(2), past(3)]
    by_hand = past(4, by_watch=False)
    assert judge(now_at(4), *spent).kind is ActKind.GIVE_UP
    assert judge(now_at(4), *spent, by_hand).attempts_left == 2
    assert judge(now_at(5), *spent, by_hand).attempts_left == 1


def test_user_stops_are_no_failures():
    stops = [past(i, failure=FailureClass.KILLED_BY_USER) for i in range(1, 5)]
    assert wait_s(judge(now_at(5), *stops)) == 10


def test_the_entry_of_the_attempt_itself_is_not_counted_twice():
    assert judge(now_at(2), past(1), past(2)) == judge(now_at(2), past(1))


def test_a_resume_behind_the_known_checkpoint_is_noted():
    behind = judge(now_at(2, step=10, checkpoint=None, resumed_from_step=None), past(1, 50))
    assert "attempt 2 began at step 0, although a checkpoint of step 50 had been seen" in behind.reason
    at_it = judge(now_at(2, step=60, checkpoint=50, resumed_from_step=50), past(1, 50))
    assert "Note" not in at_it.reason


def test_the_wait_counts_from_now():
    later = NOW + timedelta(days=1)
    decision = judge(now_at(1), now=later)
    assert decision.not_before == later + timedelta(seconds=10)


def at_step_40(attempt: int, **changes: Any) -> PastAttempt:
    return past(attempt, **{"checkpoint": 25, "first_step": 25, "last_step": 40, **changes})


def test_the_same_step_three_times_calls_a_person_though_the_budget_has_room():
    decision = judge(now_at(3, 25), at_step_40(1), at_step_40(2, fingerprint="another"))
    assert (decision.kind, decision.rule) == (ActKind.CALL, "no_progress")
    assert decision.reason.startswith("3 attempts in a row ended at step 40 (attempts 1 to 2: fx_trace_race")


def test_a_step_that_was_passed_once_or_a_spent_budget_is_no_matter_of_the_step():
    assert judge(now_at(3, 25), at_step_40(1), at_step_40(2, last_step=41)).kind is ActKind.RELAUNCH
    assert judge(now_at(2, 25), at_step_40(1)).kind is ActKind.RELAUNCH
    spent = judge(now_at(4, 25), at_step_40(1), at_step_40(2), at_step_40(3))
    assert (spent.kind, spent.rule) == (ActKind.GIVE_UP, "fx_trace_race")


def test_a_ladder_that_comes_to_the_same_step_is_climbed_on():
    oom = {"failure": FailureClass.OOM_CUDA, "fingerprint": "oom"}
    before = (at_step_40(1, **oom), at_step_40(2, rung=0, **oom))
    decision = judge(now_at(3, 25), *before, diagnosis=died(FailureClass.OOM_CUDA, "oom"))
    assert (decision.kind, decision.rung) == (ActKind.RELAUNCH_WITH, 2)


def test_a_playbook_may_leave_the_step_out():
    skipping = parse(
        "extends: default\nrules:\n  no_progress:\n    act: relaunch\n    attempts: 5\n"
        "    do: [skip_batch]\n    why: One bad batch is not worth a night.\n",
        "skip.yaml",
    )
    decision = judge(now_at(3, 25), at_step_40(1), at_step_40(2), playbook=skipping)
    assert (decision.kind, decision.rule) == (ActKind.RELAUNCH, "no_progress")
    assert [remedy.step for remedy in decision.remedies] == [41]


def test_what_hangs_waits_the_grace_and_what_is_dead_does_not():
    hung = Diagnosis(state=RunState.HUNG, failure=FailureClass.HANG, summary="", fingerprint="hang: train")
    book = parse("extends: default\nbackoff: [15s]\njitter: 0\ngrace: 90s\n", "grace.yaml")
    assert wait_s(judge(now_at(1), diagnosis=hung, playbook=book)) == 90
    assert wait_s(judge(now_at(1), playbook=book)) == 15
