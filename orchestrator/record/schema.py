"""Brings a record file to this program's schema. Alembic is imported only when there is work for it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from orchestrator.errors import RecordError

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection, Engine

HEAD = "0002"
"""The newest version under `migrations/versions`; a contract test holds it there."""


def ensure_schema(engine: Engine, writer: Engine, path: Path) -> None:
    """Migrate `path` if it is behind, and leave it in WAL mode.

    `writer` begins its transactions with the write lock: of two processes that open a new file one migrates
    and the other waits, then finds nothing to do.

    Raises:
        RecordError: The schema is newer than this program, or the file is another program's database.
    """
    with engine.connect() as connection:
        version = _version(connection, path)
    _use_wal(engine)
    if version == HEAD:
        return
    with writer.begin() as connection:
        if _version(connection, path) != HEAD:
            _upgrade(connection)


def alembic_config(connection: Connection | None = None) -> Config:
    """Return Alembic's configuration, made here so that nobody needs an ini file."""
    from alembic.config import Config  # inside, because it is slow to import, and rarely needed

    config = Config()
    where = str(Path(__file__).with_name("migrations"))
    config.set_main_option("script_location", where.replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _upgrade(connection: Connection) -> None:
    from alembic import command  # inside, because it is slow to import, and rarely needed

    command.upgrade(alembic_config(connection), "head")


def _version(connection: Connection, path: Path) -> str | None:
    """Return the schema version, None for an empty file."""
    try:
        version = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    except OperationalError as error:
        if "no such table" not in str(error.orig):
            raise
        version = None
    if version is None:
        others = connection.execute(text("SELECT name FROM sqlite_master WHERE name != 'alembic_version'"))
        if found := others.scalar():
            raise RecordError(
                f'{path}: this SQLite file is not a dflashctl record (it has a table "{found}")',
                hint="name another file with DFLASHCTL_RECORD",
            )
        return None
    if not re.fullmatch(r"\d{4}", str(version)):
        raise RecordError(
            f'{path}: this SQLite file is not a dflashctl record (its schema version is "{version}")',
            hint="name another file with DFLASHCTL_RECORD",
        )
    if str(version) > HEAD:
        raise RecordError(
            f"{path}: the record has schema {version}, and this dflashctl knows {HEAD} at most",
            hint="upgrade dflashctl, or name another file with DFLASHCTL_RECORD",
        )
    return str(version)


def _use_wal(engine: Engine) -> None:
    """Readers never wait for the writer in WAL mode. It is kept in the file, and not set in a transaction."""
    raw = engine.raw_connection()
    try:
        cursor = raw.cursor()
        cursor.execute("PRAGMA journal_mode")
        if cursor.fetchall() != [("wal",)]:
            cursor.execute("PRAGMA journal_mode=WAL")
        cursor.close()
    finally:
        raw.close()
