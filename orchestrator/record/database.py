"""The file itself: where it is, how it is opened, how its errors are told, how a lock is waited for."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.orm import Session

from orchestrator.errors import RecordError, RecordGone
from orchestrator.record.schema import ensure_schema
from orchestrator.record.telling import is_locked, told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sqlalchemy import Engine

T = TypeVar("T")

BUSY_TIMEOUT_S = 5.0
LOCK_TRIES = 4  # SQLite answers "locked" at once in a few cases that its own timeout does not cover


class Database:
    """Runs short transactions on one file; any thread may call, and other processes may have it open."""

    def __init__(self, path: Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        """Open, create or migrate `path`.

        Raises:
            RecordError: It cannot be opened, is not a record, or is of a newer schema.
        """
        self.path = path
        self._busy_timeout_s = busy_timeout_s
        self._lock = threading.Lock()  # our own threads queue here instead of polling SQLite's lock
        self._is_other = False  # another file was opened, and is not known to be a record yet
        self._open = threading.local()  # the session of a `together` of this thread
        with told(path):
            _create(path)
            self._open_file()
        try:
            self._retried(lambda: ensure_schema(self._engine, self._writer, path))
        except RecordError:
            self.close()
            raise

    def _open_file(self) -> None:
        self._identity, self._is_gone = _identity(self.path), False
        self._engine = self._make_engine()
        self._writer = self._engine.execution_options(begin="IMMEDIATE")

    def reopen(self) -> bool:
        """Open what is at the path now, if that is another file than before; returns whether it is.

        Raises:
            RecordGone: Nothing is there: a new record would know of no run.
            RecordError: What is there cannot be used.
        """
        with self._lock, told(self.path):
            try:
                if _identity(self.path) != self._identity:
                    self.close()
                    self._open_file()
                    self._is_other = True
            except (FileNotFoundError, NotADirectoryError) as error:
                raise self._gone() from error
            if not self._is_other:
                return False
            self._retried(lambda: ensure_schema(self._engine, self._writer, self.path))
            self._is_other = False
        return True

    def read(self, work: Callable[[Session], T]) -> T:
        """Run `work` on one consistent view of the record.

        Raises:
            RecordError: The record could not be read.
        """

        def once() -> T:
            with Session(self._engine) as session:
                return work(session)

        return self._retried(once)

    def write(self, work: Callable[[Session], T]) -> T:
        """Run `work` in a transaction that holds the write lock from its start; on return it is on disk.

        `work` may be called again if another process held the lock.

        Raises:
            RecordError: Nothing was written.
        """
        shared: Session | None = getattr(self._open, "session", None)
        if shared is not None:
            with told(self.path):
                done = work(shared)
                shared.flush()
                return done

        def once() -> T:
            with Session(self._writer, expire_on_commit=False) as session, session.begin():
                return work(session)

        with self._lock:
            return self._retried(once)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make one transaction of the writes of this thread inside; they are on disk at its end, or none is.

        Raises:
            RecordError: Nothing was written.
        """
        with self._lock, Session(self._writer, expire_on_commit=False) as session:
            self._retried(session.connection)  # takes the write lock: from here on nobody is waited for
            self._open.session = session
            try:
                yield
                with told(self.path):
                    session.commit()
            finally:
                self._open.session = None

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def _retried(self, once: Callable[[], T]) -> T:
        for tries_left in reversed(range(LOCK_TRIES)):
            try:
                with told(self.path):
                    self._check_place()
                    return once()
            except RecordError as error:
                if not (tries_left and is_locked(error.__cause__)):
                    raise
                time.sleep(0.05)  # noqa: TID251 - waits for another process's lock; a clock decides nothing here
        raise AssertionError("unreachable")

    def _check_place(self) -> None:
        """A file that was moved or deleted stays open, and would be written to for nobody, for ever.

        Raises:
            RecordGone: Another file is at the path, or none.
        """
        try:
            is_there = _identity(self.path) == self._identity
        except (FileNotFoundError, NotADirectoryError):
            is_there = False
        was_gone, self._is_gone = self._is_gone, not is_there
        if not is_there:
            if not was_gone:
                self._let_go()
            raise self._gone()

    def _gone(self) -> RecordGone:
        return RecordGone(
            f"{self.path}: the record was moved or deleted while in use; nothing more is written to it",
            hint="put it back, or start this program anew: it begins with the record that is there then",
        )

    def _let_go(self) -> None:
        """Bring the journal into the file, wherever that is; SQLite would leave it here, for another one."""
        with suppress(RecordError), told(self.path):
            raw = self._engine.raw_connection()
            raw.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
            raw.close()
        self.close()

    def _make_engine(self) -> Engine:
        def connect() -> sqlite3.Connection:
            # `mode=rw`: what was deleted a moment ago must not come back as an empty file.
            # Behind `file://` also a path that begins with two slashes is no host's name.
            address = f"file://{quote(os.fsencode(self.path.absolute()))}?mode=rw"
            return sqlite3.connect(address, uri=True, timeout=self._busy_timeout_s, check_same_thread=False)

        engine = create_engine(URL.create("sqlite", database=str(self.path)), creator=connect)

        @event.listens_for(engine, "connect")
        def prepare(connection: sqlite3.Connection, _record: object) -> None:
            # The driver's own transaction handling would begin late, and without the lock.
            connection.isolation_level = None
            connection.execute("PRAGMA foreign_keys=ON")
            # Every commit is fsynced. WAL at NORMAL would survive our own death but not a power cut, and an
            # intent that a power cut can undo is no intent; we commit a few times a second at most.
            connection.execute("PRAGMA synchronous=FULL")

        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            mode: Any = connection.get_execution_options().get("begin", "DEFERRED")
            connection.exec_driver_sql(f"BEGIN {mode}")

        return engine


def _identity(path: Path) -> tuple[int, int]:
    there = path.stat()
    return there.st_dev, there.st_ino


def _create(path: Path) -> None:
    """Make the directory (0700) and the file (0600): a record names hosts, paths and command lines."""
    if not path.parent.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
