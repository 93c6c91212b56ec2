"""A record of an older program is brought to this one's schema with everything in it."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from alembic import command
from sqlalchemy import create_engine

from orchestrator.record import Record
from orchestrator.record.schema import alembic_config

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 11, 29, tzinfo=timezone.utc)


def first_schema(path: Path) -> None:
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        command.upgrade(alembic_config(connection), "0001")
    engine.dispose()
    with sqlite3.connect(path) as raw:
        raw.execute(
            "INSERT INTO runs VALUES (1, 'b32', 'pve/200', '{}', '{}', NULL, ?, 'dead', NULL, 10.0)",
            ("2026-11-29T19:31:31.000000Z",),
        )
        raw.execute("INSERT INTO attempts (run_id, n, changes, last_step) VALUES (1, 3, '{}', 119)")
    raw.close()


def test_a_record_of_the_first_schema_keeps_its_attempts_and_takes_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "record.sqlite3"
    first_schema(path)
    with Record.open(path) as record:
        (attempt,) = record.attempts(record.run("b32").id)
        assert (attempt.n, attempt.last_step, attempt.spec, attempt.environment) == (3, 119, None, None)
        record.save_attempt(1, 3, environment={"torch": "2.11.0"})
    with Record.open(path) as record:
        (attempt,) = record.attempts(1)
        assert (attempt.environment, attempt.spec, attempt.last_step) == ({"torch": "2.11.0"}, None, 119)


def test_what_an_attempt_ran_on_is_kept_without_a_value_of_its_environment(tmp_path: Path) -> None:
    path = tmp_path / "record.sqlite3"
    with Record.open(path) as record:
        run = record.save_run("a", {}, "local", {}, NOW)
        told = {"env": {"HF_TOKEN": "hunter2"}, "torch": "2.11.0"}
        record.save_attempt(run.id, 1, environment=told, spec=told)
        (attempt,) = record.attempts(run.id)
    assert attempt.environment == attempt.spec == {"torch": "2.11.0", "env_names": ["HF_TOKEN"]}
    assert b"hunter2" not in path.read_bytes()
