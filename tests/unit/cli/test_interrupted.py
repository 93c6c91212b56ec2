"""Ctrl-C while a host does not answer: what is said of the end is true of the verb."""

from __future__ import annotations

import logging
import signal
import socket
import sqlite3
import subprocess
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine

from orchestrator.cli.app import is_no_interrupt
from orchestrator.errors import Exit
from tests.cli import Cli

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("launch", "--run", "r1", "--ct", "200"), "nothing was started"),
        (("doctor", "--ct", "200"), "nothing was changed"),
    ],
)
def test_ctrl_c_is_told_in_the_verbs_own_words(tmp_path: Path, words: tuple[str, ...], said: str):
    cli = Cli(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        argv = cli.argv(*words, "--host", "127.0.0.1", "--port", str(silent.getsockname()[1]))
        with subprocess.Popen(argv, env=cli.env, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as run:
            near, _ = silent.accept()
            with near:
                run.send_signal(signal.SIGINT)
                _, err = run.communicate(timeout=120)
    assert (run.returncode, err.splitlines()[-1:]) == (Exit.INTERRUPTED, [f"dflashctl: interrupted; {said}"])


class Interrupted(sqlite3.Connection):
    """A connection in which a Ctrl-C arrives while the pool takes it back."""

    is_due = False

    def rollback(self) -> None:
        if self.is_due:
            raise KeyboardInterrupt
        super().rollback()


def test_a_library_s_traceback_of_a_ctrl_c_is_not_shown(capfd: pytest.CaptureFixture[str]):
    pool, handler = logging.getLogger("sqlalchemy.pool"), logging.StreamHandler()
    handler.addFilter(is_no_interrupt)
    pool.addHandler(handler)
    try:
        engine = create_engine("sqlite://", creator=lambda: sqlite3.connect(":memory:", factory=Interrupted))
        connection = engine.raw_connection()
        assert isinstance(connection.driver_connection, Interrupted)
        connection.driver_connection.is_due = True
        with pytest.raises(KeyboardInterrupt):
            connection.close()
        assert capfd.readouterr().err == ""
        pool.error("told", exc_info=ValueError("all the same"))
        assert "ValueError: all the same" in capfd.readouterr().err
    finally:
        pool.removeHandler(handler)
