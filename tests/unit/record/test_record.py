from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest

from orchestrator.errors import ConfigError, NotFound, RecordError
from orchestrator.record import Batch, Record
from orchestrator.types.decision import ActKind
from orchestrator.types.failure import Diagnosis, Evidence, FailureClass, Role, RunState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW = datetime(2026, 11, 29, 19, 31, 31, 250, tzinfo=timezone.utc)
DEAD = Diagnosis(
    state=RunState.DEAD,
    failure=FailureClass.FX_TRACE_RACE,
    summary="torch.compile was called inside an FX trace",
    evidence=(
        Evidence(source="log", text="RuntimeError: Detected that you are using FX", offset=812, rank=0),
    ),
    cascades=(Evidence(source="log", text="ChildFailedError", role=Role.CASCADE, signature="elastic"),),
    warnings=(Evidence(source="log", text="recompile limit near", role=Role.PREDICTION),),
    confidence=0.9,
    fingerprint="fx",
)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    with Record.open(tmp_path / "record.sqlite3") as opened:
        yield opened


@pytest.fixture
def run(record: Record) -> int:
    return record.save_run("dflash", {"host": "pve1", "ct": 200}, "pve1/200", {"argv": ["x"]}, NOW).id


def test_saving_a_run_twice_updates_the_one_row(record: Record) -> None:
    first = record.save_run("a", {}, "local", {"argv": ["1"]}, NOW, playbook="mine.yaml")
    second = record.save_run("a", {}, "local", {"argv": ["2"]}, later(9))
    assert second.id == first.id
    assert second.created_at == NOW
    assert record.run("a").spec == {"argv": ["2"]}
    assert record.run("a").playbook == "mine.yaml"
    assert len(record.runs()) == 1


def test_values_of_environment_variables_never_reach_the_file(record: Record) -> None:
    secret = {"env": {"HF_TOKEN": "hunter2"}, "env_names": ["PATH"]}
    run = record.save_run("a", {"deep": [secret]}, "local", secret, NOW)
    record.intend(run.id, 1, "launch", "asked", {"spec": secret}, NOW)
    record.save_attempt(run.id, 1, changes=secret)
    assert run.spec == {"env_names": ["HF_TOKEN", "PATH"]}
    record.close()
    files = [path.read_bytes() for path in record.path.parent.iterdir()]
    assert any(b"HF_TOKEN" in content for content in files)
    assert not any(b"hunter2" in content for content in files)


def test_an_unknown_run_is_answered_with_those_that_exist(record: Record, run: int) -> None:
    with pytest.raises(NotFound, match=r'no run "dflahs" in the record; it holds dflash at pve1/200'):
        record.run("dflahs")
    with pytest.raises(NotFound, match="at pve2/7"):
        record.run("dflash", "pve2/7")


def test_a_name_at_two_targets_asks_which(record: Record, run: int) -> None:
    other = record.save_run("dflash", {}, "pve2/7", {}, NOW)
    with pytest.raises(ConfigError, match="pve1/200, pve2/7; say which with --host and --ct"):
        record.run("dflash")
    assert record.run("dflash", "pve2/7").id == other.id


def test_a_removed_run_keeps_its_story_and_frees_its_name(record: Record, run: int) -> None:
    record.save_attempt(run, 1, started_at=NOW)
    record.add_metrics(run, 1, [{"step": 1, "loss": 2.0}], NOW)
    record.remove_run(run, later(5))
    with pytest.raises(NotFound, match=r"removed 2026-11-29 19:31 UTC.*holds no run yet"):
        record.run("dflash")
    assert record.runs() == []
    assert [r.removed_at for r in record.runs(include_removed=True)] == [later(5)]
    assert record.metrics(run) == []
    assert len(record.attempts(run)) == 1
    again = record.save_run("dflash", {}, "pve1/200", {}, later(6))
    assert again.id != run
    assert record.attempts(again.id) == []


def test_an_attempt_keeps_the_fields_that_are_not_given(record: Record, run: int) -> None:
    record.save_attempt(run, 1, started_at=NOW, by="watch", changes={"train.lr": "1e-4", "a": "b"}, rung=1)
    record.save_attempt(run, 1, ended_at=later(60), failure=FailureClass.OOM_CUDA, exit_code=1, last_step=40)
    (attempt,) = record.attempts(run)
    assert (attempt.started_at, attempt.by, attempt.rung) == (NOW, "watch", 1)
    assert list(attempt.changes) == ["train.lr", "a"]
    assert (attempt.failure, attempt.exit_code, attempt.has_ended) == (FailureClass.OOM_CUDA, 1, True)
    with pytest.raises(TypeError, match="no field lasst_step"):
        record.save_attempt(run, 1, lasst_step=3)  # type: ignore[call-arg]


def test_history_holds_the_ended_attempts_only(record: Record, run: int) -> None:
    record.save_attempt(run, 1, started_at=NOW, ended_at=later(1), by="user", checkpoint_step=20)
    record.save_attempt(run, 2, started_at=later(2), by="watch")
    (past,) = record.history(run).attempts
    assert (past.attempt, past.checkpoint_step, past.by_watch) == (1, 20, False)


def test_a_diagnosis_comes_back_as_it_was_given(record: Record, run: int) -> None:
    record.diagnosis(run, 1, DEAD, NOW)
    row = record.latest_diagnosis(run)
    assert row is not None
    assert row.diagnosis == DEAD
    assert row.at == NOW
    assert record.run("dflash").state is RunState.DEAD


def test_only_the_same_diagnosis_in_a_row_is_skipped(record: Record, run: int) -> None:
    healthy = Diagnosis(state=RunState.HEALTHY, failure=FailureClass.HEALTHY, summary="it trains")
    first = record.diagnosis(run, 1, DEAD, NOW)
    assert record.diagnosis(run, 1, DEAD, later(1)) == first
    assert record.diagnosis(run, 1, healthy, later(2)) != first
    assert record.diagnosis(run, 1, DEAD, later(3)) != first
    assert record.diagnosis(run, 2, DEAD, later(4)) != first
    assert [row.at for row in record.diagnoses(run)] == [NOW, later(2), later(3), later(4)]
    known = record.latest_diagnosis(run, 1)
    assert known is not None
    assert known.at == later(3)
    assert record.latest_diagnosis(run, 9) is None


def test_text_that_no_file_can_hold_is_kept_as_far_as_it_can_be(record: Record, run: int) -> None:
    broken = Diagnosis(
        state=RunState.DEAD,
        failure=None,
        summary="bad \udcff\x00",
        evidence=(Evidence(source="log", text="x" * 100_000),),
    )
    assert record.diagnosis(run, 1, broken, NOW) == record.diagnosis(run, 1, broken, later(1))
    row = record.latest_diagnosis(run)
    assert row is not None
    assert row.summary == "bad ?\x00"
    assert len(row.evidence[0].text) == 8_000


def test_a_transition_sets_the_state_once(record: Record, run: int) -> None:
    assert record.transition(run, 1, RunState.NEW, RunState.HEALTHY, "first step", NOW)
    assert not record.transition(run, 1, RunState.NEW, RunState.HEALTHY, "seen by a second watcher", later(1))
    assert record.run("dflash").state is RunState.HEALTHY


def test_news_of_an_older_attempt_does_not_set_the_runs_state(record: Record, run: int) -> None:
    record.save_attempt(run, 1, started_at=NOW)
    record.save_attempt(run, 2, started_at=later(1))
    record.transition(run, 2, None, RunState.HEALTHY, "", later(2))
    record.transition(run, 1, None, RunState.DEAD, "", later(3))
    assert record.run("dflash").state is RunState.HEALTHY


def test_an_intent_stays_open_until_its_outcome(record: Record, run: int) -> None:
    action = record.intend(run, 1, ActKind.RELAUNCH, "budget left", {"attempt": 2}, NOW)
    (open_one,) = record.open_intents(run)
    assert (open_one.id, open_one.kind, open_one.intent) == (action, "relaunch", {"attempt": 2})
    assert record.outcome(action, "started", later(1))
    assert record.open_intents(run) == []
    assert not record.outcome(action, "unknown", later(2))
    assert record.events(run)[-1].text == "relaunch: started"
    with pytest.raises(RecordError, match="action 99: no such action"):
        record.outcome(99, "started", NOW)


def test_events_are_merged_in_the_order_of_time(record: Record, run: int) -> None:
    record.diagnosis(run, 1, DEAD, later(3))
    record.save_attempt(run, 1, started_at=NOW, ended_at=later(2), by="user", exit_code=1, last_step=7)
    record.transition(run, 1, RunState.HEALTHY, RunState.DEAD, "it died", later(3))
    record.outcome(record.intend(run, 1, "relaunch", "why", {}, later(4)), "failed", later(5), error="no")
    other = record.save_run("other", {}, "local", {}, NOW)
    record.save_attempt(other.id, 1, started_at=later(1))
    events = record.events(None)
    assert [(e.run, e.kind, e.text) for e in events] == [
        ("dflash", "started", "attempt 1 started by user"),
        ("other", "started", "attempt 1 started"),
        ("dflash", "ended", "attempt 1 ended: exit code 1, step 7"),
        ("dflash", "transition", "healthy -> dead: it died"),
        ("dflash", "diagnosis", f"fx_trace_race: {DEAD.summary}"),
        ("dflash", "action", "relaunch: why"),
        ("dflash", "outcome", "relaunch: failed: no"),
    ]
    assert [e.kind for e in record.events(run, since=later(3), limit=2)] == ["action", "outcome"]
    assert [e.kind for e in record.events(run, since=later(5))] == ["outcome"]
    assert len({e.key for e in events}) == len(events)


def test_a_cursor_never_moves_back(record: Record, run: int) -> None:
    assert record.cursor(run, 1).log_offset == 0
    for log_offset, metrics_offset in ((500, 40), (300, 0)):
        batch = Batch()
        batch.move_cursor((run, 1), log_offset, metrics_offset)
        record.save_batch(batch)
    assert (record.cursor(run, 1).log_offset, record.cursor(run, 1).metrics_offset) == (500, 40)


def test_times_come_back_aware_and_naive_ones_are_refused(record: Record) -> None:
    east = NOW.astimezone(timezone(timedelta(hours=9)))
    run = record.save_run("a", {}, "local", {}, east)
    assert run.created_at == NOW
    assert record.run("a").created_at.tzinfo is timezone.utc
    with pytest.raises(Exception, match="must be aware"):
        record.save_attempt(run.id, 1, started_at=NOW.replace(tzinfo=None))
    assert record.attempts(run.id) == []


def test_rows_cannot_be_changed(record: Record, run: int) -> None:
    with pytest.raises(FrozenInstanceError):
        record.run("dflash").name = "other"  # type: ignore[misc]


def test_a_run_that_is_not_there_is_told_without_a_traceback(record: Record) -> None:
    with pytest.raises(RecordError, match="the run is not in this record"):
        record.intend(41, 1, "relaunch", "why", {}, NOW)
