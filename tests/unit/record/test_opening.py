from __future__ import annotations

import os
import sqlite3
import threading
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import event

from orchestrator.errors import Exit, RecordError
from orchestrator.places import record_path
from orchestrator.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW = datetime(2026, 11, 29, tzinfo=timezone.utc)


@pytest.fixture
def ordinary_user(tmp_path: Path) -> Iterator[None]:
    """Root may write anywhere; these tests are of one who may not."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_the_record_is_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASHCTL_RECORD", str(tmp_path / "mine.sqlite3"))
    assert record_path() == tmp_path / "mine.sqlite3"
    monkeypatch.setenv("DFLASHCTL_RECORD", "")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert record_path() == tmp_path / "state/dflashctl/record.sqlite3"


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "dflashctl/record.sqlite3"
    with Record.open(path) as record:
        record.save_run("a", {}, "local", {}, NOW)
        modes = {p.stat().st_mode & 0o777 for p in path.parent.iterdir()}
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert modes == {0o600}


def test_an_odd_path_is_a_path(tmp_path: Path) -> None:
    path = tmp_path / "100% of? it's #1" / "record;.sqlite3"
    with Record.open(path) as record:
        record.save_run("a", {}, "local", {}, NOW)
    assert path.is_file()
    with Record.open(path) as record:
        assert [run.name for run in record.runs()] == ["a"]


def test_a_path_with_two_slashes_in_front_or_bytes_of_no_encoding_is_a_path_too(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9") / "record.sqlite3"
    for path in (Path(f"/{tmp_path}/a/record.sqlite3"), odd):
        with Record.open(path) as record:
            record.save_run("a", {}, "local", {}, NOW)
        with Record.open(path) as record:
            assert [run.name for run in record.runs()] == ["a"]
    assert odd.is_file()


def test_it_is_durable_and_open_to_several(tmp_path: Path) -> None:
    path = tmp_path / "record.sqlite3"
    with Record.open(path) as first, Record.open(path) as second:
        first.save_run("a", {}, "local", {}, NOW)
        second.save_run("b", {}, "local", {}, NOW)
        assert {run.name for run in first.runs()} == {"a", "b"}
    file = sqlite3.connect(path)
    assert file.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    file.close()


def test_a_file_that_is_no_database_is_told_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "record.sqlite3"
    path.write_text("dear diary\n" * 200)
    with pytest.raises(RecordError, match=rf"{path}: .*not a database; .*mv {path}") as told:
        Record.open(path)
    assert told.value.exit_code is Exit.RECORD
    assert path.read_text() == "dear diary\n" * 200


def test_a_damaged_record_is_told(tmp_path: Path) -> None:
    path = tmp_path / "record.sqlite3"
    with Record.open(path) as record:
        record.save_run("a", {}, "local", {}, NOW)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    with pytest.raises(RecordError, match="malformed; it is damaged"):
        Record.open(path).runs()


def test_another_programs_database_is_told_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite3"
    file = sqlite3.connect(path)
    file.execute("CREATE TABLE urls (url)")
    file.close()
    before = path.read_bytes()
    with pytest.raises(RecordError, match=r'not a dflashctl record .*"urls"'):
        Record.open(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("version", "said"),
    [("0099", "has schema 0099, .*upgrade dflashctl"), ("ae1027a6acf", "not a dflashctl record")],
)
def test_a_schema_that_is_not_ours_is_told(tmp_path: Path, version: str, said: str) -> None:
    path = tmp_path / "record.sqlite3"
    Record.open(path).close()
    file = sqlite3.connect(path)
    with file:
        file.execute("UPDATE alembic_version SET version_num = ?", (version,))
    file.close()
    with pytest.raises(RecordError, match=said):
        Record.open(path)


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"Not a directory; make .* writable"):
        Record.open(tmp_path / "file" / "dflashctl" / "record.sqlite3")
    with pytest.raises(RecordError, match="Is a directory"):
        Record.open(tmp_path)


def test_a_directory_that_is_not_ours_is_told(tmp_path: Path, ordinary_user: None) -> None:
    with pytest.raises(RecordError, match=r"Permission denied; make /usr writable"):
        Record.open(Path("/usr/dflashctl.sqlite3"))


def test_a_full_disk_is_told_and_loses_nothing(tmp_path: Path) -> None:
    with Record.open(tmp_path / "record.sqlite3") as record:
        run = record.save_run("a", {}, "local", {}, NOW)
        writer = record._database._engine

        @event.listens_for(writer, "begin")
        def no_more_pages(connection) -> None:
            connection.exec_driver_sql("PRAGMA max_page_count=1")  # SQLite's own way to be full

        with pytest.raises(RecordError, match=r"full; free some space in"):
            record.save_run("b", {"big": "x" * 100_000}, "local", {}, NOW)
        assert record.runs() == [run]


def test_a_lock_that_is_not_let_go_is_told(tmp_path: Path) -> None:
    path = tmp_path / "record.sqlite3"
    Record.open(path).close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with Record.open(path, busy_timeout_s=0.01) as record:
        assert record.runs() == []  # a reader waits for nobody
        with pytest.raises(RecordError, match=f"database is locked; .*fuser -v {path}"):
            record.save_run("a", {}, "local", {}, NOW)
        other.execute("COMMIT")
        other.close()
        assert record.save_run("a", {}, "local", {}, NOW).name == "a"


def test_many_threads_may_write_at_once(tmp_path: Path) -> None:
    with Record.open(tmp_path / "record.sqlite3") as record:
        run = record.save_run("a", {}, "local", {}, NOW)

        def work(n: int) -> None:
            for i in range(10):
                record.intend(run.id, n, "relaunch", f"{n}.{i}", {}, NOW)
                record.events(run.id)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {a.reason for a in record.open_intents(run.id)} == {
            f"{n}.{i}" for n in range(8) for i in range(10)
        }
