"""States from proof. Whatever cannot be seen says nothing; whatever is alive is never dead."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.classify import Limits, LogScanner, diagnose
from orchestrator.types.failure import FailureClass, RunState
from orchestrator.types.seen import Absent, Blind, LastWords, Liveness, Phase, Present
from orchestrator.types.snapshot import LogReading, Snapshot
from tests.builders import ALIVE, GONE, NOW, ago, make_exit, make_heartbeat, make_snapshot

LIMITS = Limits(
    init_s=10, load_s=10, compile_s=60, warmup_s=60, train_s=10, eval_s=20, checkpoint_s=20, export_s=20
)
BLIND = Blind("connection lost")


def dead(**changes: Any) -> Snapshot:
    return make_snapshot(**{"liveness": Present(GONE), "exit": Present(make_exit(1)), **changes})


def read(text: str) -> LogReading:
    scanner = LogScanner()
    scanner.feed(text.encode(), 0)
    return scanner.reading()


def test_a_healthy_run_is_healthy_and_says_where_it_is():
    found = diagnose(make_snapshot(), LIMITS)
    assert found.state is RunState.HEALTHY
    assert found.summary == "train, step 40 of 100, loss 2.5"


readings = st.sampled_from([Absent(), BLIND])
snapshots = st.builds(
    make_snapshot,
    liveness=st.sampled_from(
        [Absent(), BLIND, Present(ALIVE), Present(GONE), Present(replace(ALIVE, supervisor=False))]
    ),
    heartbeat=st.one_of(readings, st.sampled_from(Phase).map(lambda p: Present(make_heartbeat(phase=p)))),
    exit=st.one_of(readings, st.sampled_from([0, 1, 70, 75, 137]).map(lambda c: Present(make_exit(c)))),
    result=st.one_of(readings, st.just(Present({}))),
    stop_by=st.sampled_from([None, "user", "watch"]),
    container=st.sampled_from([None, "running", "stopped", "frozen", "locked:backup"]),
    container_restarted=st.booleans(),
    started_at=st.sampled_from([None, ago(60)]),
    heartbeat_seen_at=st.sampled_from([None, ago(0.5), ago(10_000)]),
    kind=st.sampled_from(["trainer", "command"]),
)


@given(snapshots)
def test_death_needs_positive_proof(snapshot: Snapshot):
    found = diagnose(snapshot, LIMITS)
    if found.state is RunState.DEAD:
        assert isinstance(snapshot.liveness, Present)
        assert snapshot.liveness.value.is_gone
        assert not isinstance(snapshot.exit, Blind)
        assert found.failure is not None
        assert found.fingerprint
        assert found.evidence


@given(snapshots)
def test_a_hang_needs_life_and_a_heartbeat(snapshot: Snapshot):
    found = diagnose(snapshot, LIMITS)
    if found.state is RunState.HUNG:
        assert isinstance(snapshot.liveness, Present)
        assert not snapshot.liveness.value.is_gone
        assert isinstance(snapshot.heartbeat, Present)
        assert snapshot.heartbeat_seen_at == ago(10_000)
        assert snapshot.container in (None, "running")


@given(snapshots)
def test_a_run_that_cannot_be_seen_is_blind(snapshot: Snapshot):
    running = replace(snapshot, liveness=BLIND, container="running")
    assert diagnose(running, LIMITS).state is RunState.BLIND


@given(snapshots)
def test_a_user_stop_is_never_a_death(snapshot: Snapshot):
    assert diagnose(replace(snapshot, stop_by="user"), LIMITS).state is not RunState.DEAD or _lost_its_loss(
        snapshot
    )


def _lost_its_loss(snapshot: Snapshot) -> bool:
    return any(match.failure is FailureClass.NAN_LOSS for match in snapshot.log.matches)


@given(snapshots)
def test_success_with_a_result_is_finished_once_all_is_gone(snapshot: Snapshot):
    ended = replace(
        snapshot, liveness=Present(GONE), exit=Present(make_exit(0)), result=Present({}), container="running"
    )
    assert diagnose(ended, LIMITS).state is RunState.FINISHED


def test_an_exit_record_that_cannot_be_read_is_blind_for_it_may_say_success():
    assert diagnose(dead(exit=BLIND), LIMITS).state is RunState.BLIND


def test_a_result_that_cannot_be_read_is_blind_for_it_may_be_there():
    assert diagnose(dead(exit=Present(make_exit(0)), result=BLIND), LIMITS).state is RunState.BLIND


def test_gone_before_the_trainer_was_started_is_new():
    assert diagnose(dead(exit=Absent(), started_at=None), LIMITS).state is RunState.NEW


def test_gone_while_its_supervisor_still_writes_is_not_dead_yet():
    writing = Liveness(lock_held=False, pids=(), supervisor=True, session=True)
    assert diagnose(dead(exit=Absent(), liveness=Present(writing)), LIMITS).state is RunState.ENDING


def test_gone_without_an_exit_record_is_dead_with_less_confidence():
    found = diagnose(dead(exit=Absent()), LIMITS)
    assert (found.state, found.failure) == (RunState.DEAD, FailureClass.SIGNAL_EXIT)
    assert found.confidence <= 0.5
    assert "vanished" in found.summary


def test_processes_left_behind_keep_it_from_being_dead():
    left = Liveness(lock_held=True, pids=(7,), supervisor=False, session=True)
    found = diagnose(make_snapshot(liveness=Present(left), exit=Present(make_exit(1))), LIMITS)
    assert found.state is RunState.UNSUPERVISED


def test_what_is_left_behind_does_not_hide_how_the_run_ended():
    left = Liveness(lock_held=True, pids=(7,), supervisor=False, session=True)
    log = read('Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: boom\n')
    found = diagnose(make_snapshot(liveness=Present(left), exit=Present(make_exit(1)), log=log), LIMITS)
    assert found.failure is FailureClass.PYTHON_EXCEPTION
    assert "ValueError: boom" in found.summary
    assert "its pid 7 still lives and holds the run" in found.summary
    done = make_snapshot(liveness=Present(left), exit=Present(make_exit(0)), result=Present({}))
    assert diagnose(done, LIMITS).summary.startswith("finished at step 40; but its pid 7")


@pytest.mark.parametrize(("kind", "leftover"), [("command", (7, 8)), ("command", ()), ("trainer", (7,))])
def test_a_command_that_went_into_the_background_is_told_what_was_ended_with_it(kind, leftover):
    ended = replace(make_exit(0), leftover=leftover)
    results: dict[str, Any] = {"result": Present({})} if kind == "trainer" else {}
    found = diagnose(dead(exit=Present(ended), kind=kind, **results), LIMITS)
    assert found.state is RunState.FINISHED
    is_told = kind == "command" and bool(leftover)
    assert ("2 processes that it left running (pid 7, 8) were ended with it" in found.summary) is is_told


UNSUPERVISED = Present(Liveness(lock_held=True, pids=(7,), supervisor=False, session=True))


def test_an_unsupervised_run_that_stands_still_hangs_as_any_other():
    found = diagnose(make_snapshot(liveness=UNSUPERVISED, heartbeat_seen_at=ago(11)), LIMITS)
    assert (found.state, found.failure) == (RunState.HUNG, FailureClass.HANG)


@pytest.mark.parametrize(
    "changes",
    [{"heartbeat_seen_at": ago(9)}, {"heartbeat": Absent()}, {"stop_by": "user"}, {"started_at": None}],
    ids=["it moves", "it tells nothing", "its user stops it", "it was begun by hand"],
)
def test_an_unsupervised_run_that_may_stand_still_hangs_not(changes):
    silent = {"liveness": UNSUPERVISED, "heartbeat_seen_at": ago(100), **changes}
    assert diagnose(make_snapshot(**silent), LIMITS).state is RunState.UNSUPERVISED


@pytest.mark.parametrize("stop_by", ["watch", None])
def test_an_end_that_no_supervisor_saw_is_no_failed_start(stop_by):
    closed = replace(make_exit(None), error="supervisor gone")
    found = diagnose(dead(exit=Present(closed), stop_by=stop_by, stop_reason="it hung"), LIMITS)
    assert found.failure is (FailureClass.HANG if stop_by else FailureClass.SIGNAL_EXIT)
    assert "could not be started" not in found.summary


@pytest.mark.parametrize(
    ("phase", "silent_s", "state"),
    [
        (Phase.TRAIN, 11, RunState.HUNG),
        (Phase.TRAIN, 9, RunState.HEALTHY),
        (Phase.COMPILE, 59, RunState.HEALTHY),
        (Phase.COMPILE, 61, RunState.HUNG),
        (Phase.EVAL, 19, RunState.HEALTHY),
        (Phase.CHECKPOINT, 21, RunState.HUNG),
    ],
)
def test_each_phase_has_its_own_limit(phase: Phase, silent_s: float, state: RunState):
    heartbeat = Present(make_heartbeat(phase=phase))
    assert (
        diagnose(make_snapshot(heartbeat=heartbeat, heartbeat_seen_at=ago(silent_s)), LIMITS).state is state
    )


def test_a_growing_log_is_a_sign_of_life_in_init_and_no_progress_in_training():
    silent = {"heartbeat_seen_at": ago(100), "log_grew_at": ago(1)}
    init = make_snapshot(heartbeat=Present(make_heartbeat(phase=Phase.INIT)), **silent)
    assert diagnose(init, LIMITS).state is RunState.HEALTHY
    assert diagnose(make_snapshot(**silent), LIMITS).state is RunState.HUNG


def test_a_hang_after_a_dead_thread_names_the_thread_s_error():
    text = (
        "step 39/100 loss 2.5 lr 1e-4\nException in thread Thread-3:\nTraceback (most recent call last):\n"
        '  File "a.py", line 1, in f\nRuntimeError: Detected that you are using FX to symbolically trace\n'
    )
    found = diagnose(make_snapshot(heartbeat_seen_at=ago(100), log=read(text)), LIMITS)
    assert (found.state, found.failure) == (RunState.HUNG, FailureClass.FX_TRACE_RACE)
    assert "using FX" in found.evidence[0].text


def test_a_living_run_that_lost_a_thread_is_healthy_with_a_warning():
    text = (
        "Exception in thread Thread-3:\nTraceback (most recent call last):\n"
        '  File "a.py", line 1, in f\nKeyError: 1\nstep 40/100 loss 2.5 lr 1e-4\n'
    )
    found = diagnose(make_snapshot(log=read(text)), LIMITS)
    assert found.state is RunState.HEALTHY
    assert [warning.text for warning in found.warnings] == ["KeyError: 1"]


def test_last_words_decide_before_the_log():
    words = LastWords(exception="torch.OutOfMemoryError", message="CUDA out of memory. Tried 1 GiB", rank=2)
    log = read("Traceback (most recent call last):\n  File \"a\", line 1, in f\nKeyError: 'x'\n")
    found = diagnose(dead(last_words=Present(words), log=log), LIMITS)
    assert found.failure is FailureClass.OOM_CUDA
    assert found.evidence[0].rank == 2


def test_vague_last_words_give_way_to_a_specific_root_in_the_log():
    words = LastWords(exception="RuntimeError", message="worker 3 died")
    text = (
        "Exception in thread Thread-3:\nTraceback (most recent call last):\n"
        '  File "a.py", line 1, in f\nRuntimeError: Detected that you are using FX to symbolically trace\n'
    )
    found = diagnose(dead(last_words=Present(words), log=read(text)), LIMITS)
    assert found.failure is FailureClass.FX_TRACE_RACE
    assert any("worker 3 died" in evidence.text for evidence in found.evidence)


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        (65, FailureClass.IO_ERROR),
        (66, FailureClass.IO_ERROR),
        (70, FailureClass.NAN_LOSS),
        (75, FailureClass.INTERRUPTED),
        (78, FailureClass.CONFIG_ERROR),
        (127, FailureClass.CONFIG_ERROR),
        (137, FailureClass.SIGNAL_EXIT),
        (3, FailureClass.UNKNOWN),
    ],
)
def test_exit_codes_are_known_without_any_words(code: int, failure: FailureClass):
    assert diagnose(dead(exit=Present(make_exit(code))), LIMITS).failure is failure


@pytest.mark.parametrize("signal", [9, 11, 6, 15, 64])
def test_signals_are_named_and_make_a_stable_fingerprint(signal: int):
    one = diagnose(dead(exit=Present(make_exit(None, signal))), LIMITS)
    other = diagnose(dead(exit=Present(make_exit(None, signal)), attempt=7), LIMITS)
    assert one.failure is FailureClass.SIGNAL_EXIT
    assert one.fingerprint == other.fingerprint


def test_different_signals_have_different_fingerprints():
    prints = {
        diagnose(dead(exit=Present(make_exit(None, signal))), LIMITS).fingerprint for signal in (6, 9, 11)
    }
    assert len(prints) == 3


def test_the_same_cause_has_one_fingerprint_whoever_tells_it():
    message = "CUDA out of memory. Tried to allocate {} GiB. GPU 0 has"
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
    logged = dead(log=read(trace + "torch.OutOfMemoryError: " + message.format(2) + "\n"))
    spoken = dead(
        last_words=Present(LastWords(exception="torch.OutOfMemoryError", message=message.format(9)))
    )
    assert diagnose(logged, LIMITS).fingerprint == diagnose(spoken, LIMITS).fingerprint


def test_a_shell_s_killed_and_a_signal_record_are_the_same_cause():
    logged = diagnose(dead(exit=Present(make_exit(137)), log=read("Killed\n")), LIMITS)
    recorded = diagnose(dead(exit=Present(make_exit(None, 9))), LIMITS)
    assert logged.fingerprint == recorded.fingerprint
    assert "a person or the OOM killer" in logged.summary


def test_a_pane_s_last_lines_lower_the_confidence():
    trace = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\nModuleNotFoundError: No module\n'
    )
    scanner = LogScanner(truncated=True)
    scanner.feed(trace.encode(), 0)
    assert diagnose(dead(log=scanner.reading()), LIMITS).confidence <= 0.7
    assert diagnose(dead(log=read(trace)), LIMITS).confidence > 0.9


def test_a_clock_that_runs_backwards_is_no_hang():
    assert (
        diagnose(make_snapshot(heartbeat_seen_at=NOW + timedelta(hours=1)), LIMITS).state is RunState.HEALTHY
    )


def test_a_hang_names_the_newest_step_that_anything_tells_of():
    stuck = make_snapshot(heartbeat=Present(make_heartbeat(step=0)), heartbeat_seen_at=ago(10_000))
    assert "no progress in train at step 40 for" in diagnose(stuck, LIMITS).summary  # the log knows of 40
    assert make_snapshot(heartbeat=Present(make_heartbeat(step=41))).last_step == 41
    assert make_snapshot(heartbeat=Absent(), log=LogReading(read_bytes=100)).last_step is None
