"""A record that is taken away under a running program is missed at once, and never made anew in silence."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timezone

import pytest

from orchestrator.errors import RecordError, RecordGone
from orchestrator.record import Record

NOW = datetime(2026, 11, 29, tzinfo=timezone.utc)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "there" / "record.sqlite3"


@pytest.fixture
def record(path):
    with Record.open(path) as opened:
        opened.save_run("a", {}, "local", {}, NOW)
        yield opened


def delete(path):
    path.unlink()


def move(path):
    path.rename(path.with_name("away"))


def move_folder(path):
    path.parent.rename(path.parent.with_name("elsewhere"))


def replace(path):
    path.rename(path.with_name("away"))
    with Record.open(path) as other:
        other.save_run("b", {}, "local", {}, NOW)


@pytest.mark.parametrize("take", [delete, move, move_folder, replace])
def test_it_is_told_by_reads_and_writes_and_nothing_is_put_in_its_place(record, path, take):
    take(path)
    was_there = path.exists()
    for use in (record.runs, lambda: record.save_run("c", {}, "local", {}, NOW), record.together().__enter__):
        with pytest.raises(RecordError, match="was moved or deleted while in use") as caught:
            use()
        assert "put it back" in (caught.value.hint or "")
    assert path.exists() is was_there


def test_one_that_is_put_back_is_gone_on_with_and_lost_nothing(record, path):
    move(path)
    with pytest.raises(RecordError):
        record.runs()
    with pytest.raises(RecordError):
        record.reopen()
    path.with_name("away").rename(path)
    record.save_run("b", {}, "local", {}, NOW)
    assert [run.name for run in record.runs()] == ["a", "b"]


def test_another_one_in_its_place_is_used_once_that_is_asked_for(record, path):
    move(path)
    with pytest.raises(RecordError):
        record.runs()
    with Record.open(path) as new:
        new.save_run("b", {}, "local", {}, NOW)
    with pytest.raises(RecordError):
        record.runs()
    record.reopen()
    assert [run.name for run in record.runs()] == ["b"]
    record.save_run("c", {}, "local", {}, NOW)
    with Record.open(path.with_name("away")) as before:
        assert [run.name for run in before.runs()] == ["a"], (
            "the file that was moved has all that was written"
        )


def test_what_is_no_record_is_refused_in_its_place(record, path):
    move(path)
    with pytest.raises(RecordError):
        record.runs()
    path.write_text("no database at all, but long enough for a header" * 100)
    with pytest.raises(RecordError, match="not a database"):
        record.reopen()


@pytest.mark.parametrize("take", [delete, move, move_folder])
def test_beginning_anew_without_it_is_still_told_as_gone(record, path, take):
    take(path)
    for _ in range(2):
        with pytest.raises(RecordGone, match="was moved or deleted"):
            record.reopen()


def test_another_one_that_was_locked_at_first_is_still_another_one(tmp_path):
    path = tmp_path / "there" / "record.sqlite3"
    with Record.open(path, busy_timeout_s=0.05) as record:
        move(path)
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(RecordError, match="locked"):
            record.reopen()
        holder.execute("ROLLBACK")
        holder.close()
        assert record.reopen() is True
        assert record.runs() == []
        assert record.reopen() is False


def test_one_that_stays_where_it_is_is_reopened_for_nothing(record):
    record.reopen()
    assert [run.name for run in record.runs()] == ["a"]
