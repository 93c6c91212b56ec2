"""A start whose files come late, as from a disk that stalls: what lives is never told as not started."""

import os
import subprocess
import sys

import pytest

from orchestrator.guest import exits, lock, start
from orchestrator.guest.paths import RunDir
from orchestrator.guest.processes import MARK
from orchestrator.guest.refusal import Refusal

pytestmark = pytest.mark.integration


@pytest.fixture
def place(tmp_path, monkeypatch) -> RunDir:
    monkeypatch.setattr(start, "STARTED_LIMIT_S", 0.2)
    monkeypatch.setenv("TMUX_TMPDIR", str(tmp_path))
    made = RunDir(tmp_path, "r")
    made.attempt(1).mkdir(parents=True)
    return made


def test_a_trainer_that_runs_before_its_supervisor_could_say_so_was_started(place):
    held = lock.take(place.lock)
    assert held is not None
    words = [sys.executable, "-c", "import time; time.sleep(60)"]
    environment = {**os.environ, MARK: str(place.path)}
    with subprocess.Popen(words, stdin=held, env=environment, start_new_session=True) as trainer:
        os.close(held)
        try:
            assert start._await_start(place, 1) == {"trainer_pid": trainer.pid}
            assert not (place.attempt(1) / exits.NAME).exists()
        finally:
            trainer.kill()


def test_a_supervisor_that_holds_the_lock_may_start_it_yet(place):
    held = lock.take(place.lock)
    assert held is not None
    assert start._await_start(place, 1) == {"trainer_pid": None}
    assert not (place.attempt(1) / exits.NAME).exists()
    os.close(held)


def test_a_start_that_nobody_is_at_any_more_has_failed_for_good(place):
    with pytest.raises(Refusal, match="did not start the trainer"):
        start._await_start(place, 1)
    assert (place.attempt(1) / exits.NAME).exists()
