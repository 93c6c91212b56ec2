"""Models and migrations are one schema, and opening does not pay for migrating."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect

from orchestrator.record import Record
from orchestrator.record.models import Base
from orchestrator.record.schema import HEAD, alembic_config


def test_migrations_make_what_the_models_say(tmp_path: Path) -> None:
    Record.open(tmp_path / "record.sqlite3").close()
    engine = create_engine(f"sqlite:///{tmp_path / 'record.sqlite3'}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
        tables = set(inspect(connection).get_table_names())
    engine.dispose()
    assert tables == {*Base.metadata.tables, "alembic_version"}


def test_the_head_in_code_is_the_newest_migration() -> None:
    assert ScriptDirectory.from_config(alembic_config()).get_current_head() == HEAD


def test_opening_a_current_record_does_not_import_alembic(tmp_path: Path) -> None:
    path = tmp_path / "record.sqlite3"
    code = (
        "import sys, pathlib; from orchestrator.record import Record;"
        "Record.open(pathlib.Path(sys.argv[1])).close(); print('alembic' in sys.modules)"
    )
    root = Path(__file__).parents[2]

    def opened() -> str:
        argv = [sys.executable, "-c", code, str(path)]
        return subprocess.run(argv, cwd=root, check=True, capture_output=True, text=True).stdout.strip()

    assert opened() == "True"
    assert opened() == "False"
