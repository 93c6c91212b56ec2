"""Several writes as one: all on disk at the end, or none."""

from __future__ import annotations

import threading
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest

from orchestrator.errors import RecordError
from orchestrator.record import Record
from orchestrator.types.failure import Diagnosis, FailureClass, RunState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW = datetime(2026, 11, 29, tzinfo=timezone.utc)
DEAD = Diagnosis(state=RunState.DEAD, summary="it died", failure=FailureClass.UNKNOWN)


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    with Record.open(tmp_path / "record.sqlite3", busy_timeout_s=0.2) as opened:
        yield opened


@pytest.fixture
def run(record: Record) -> int:
    return record.save_run("dflash", {}, "local", {}, NOW).id


def test_writes_together_are_on_disk_at_the_end_and_not_before(record: Record, run: int) -> None:
    with record.together():
        assert record.transition(run, 1, None, RunState.DEAD, "it died", NOW)
        record.save_attempt(run, 1, last_step=7)
        first = record.diagnosis(run, 1, DEAD, NOW)
        assert record.diagnosis(run, 1, DEAD, NOW) == first, "a write sees those before it"
        assert record.attempts(run) == []
    assert [a.last_step for a in record.attempts(run)] == [7]
    assert len(record.diagnoses(run)) == 1


def test_what_fails_inside_takes_the_others_with_it_and_nothing_after_it(record: Record, run: int) -> None:
    def fail() -> None:
        with record.together():
            record.save_attempt(run, 1, last_step=7)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert record.attempts(run) == []
    record.save_attempt(run, 2)
    assert [a.n for a in record.attempts(run)] == [2]


def test_a_write_of_a_run_that_is_not_there_is_told_and_undoes_the_others(record: Record, run: int) -> None:
    def slip() -> None:
        with record.together():
            record.save_attempt(run, 1)
            record.save_attempt(run + 99, 1)

    with pytest.raises(RecordError, match="not in this record"):
        slip()
    assert record.attempts(run) == []


def test_another_thread_waits_and_is_not_drawn_in(record: Record, run: int) -> None:
    other = threading.Thread(target=lambda: record.save_attempt(run, 2))
    with record.together():
        record.save_attempt(run, 1)
        other.start()
        other.join(0.1)
        assert other.is_alive(), "it waits for the transaction"
    other.join(60)
    assert [a.n for a in record.attempts(run)] == [1, 2]


def test_a_record_that_another_process_holds_is_told_before_anything_is_done(
    record: Record, run: int, tmp_path: Path
) -> None:
    with Record.open(tmp_path / "record.sqlite3", busy_timeout_s=0.1) as other, other.together():
        other.save_attempt(run, 1)
        with pytest.raises(RecordError, match="locked"), record.together():
            pytest.fail("the lock was not held")
    assert [a.n for a in record.attempts(run)] == [1]
