"""A watch's stop means one attempt; a person's stop means the run, and is not talked over."""

import fcntl
import json
import os
import threading
import time
from typing import Any

import pytest

from tests.integration import guest_driver as driver

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not driver.HAS_TMUX, reason="no tmux")]


@pytest.fixture
def guest(tmp_path):
    yield from driver.lend(tmp_path)


def watch_stops(guest: driver.Guest, attempt: int, grace_s: float = 0.5) -> driver.Message:
    words: dict[str, Any] = {"by": "watch", "reason": "hang", "grace_s": grace_s, "only_attempt": attempt}
    return guest.ask("stop", run="r", **words)[-1]


def test_a_watchs_stop_that_comes_late_leaves_the_next_attempt_alone(guest):
    guest.start("--exit-code", 1, "--crash-at", 0)
    guest.exit()
    guest.start("--steps", 2000, attempt=2)
    stopped = watch_stops(guest, 1)
    assert (stopped["already"], stopped["terminated"], stopped["killed"]) == (True, [], [])
    assert guest.alive()["pids"]
    assert guest.look()["run"]["stop"] is None, "no intent is written against an attempt that was not meant"


def test_a_watchs_stop_ends_the_attempt_that_it_means(guest):
    started = guest.start("--steps", 2000, "--ignore-term")
    driver.wait_until((guest.dir("r", 1) / "heartbeat.json").exists)  # it is deaf from then on
    assert watch_stops(guest, 1)["killed"] == [started["trainer_pid"]]
    assert guest.look()["run"]["stop"]["by"] == "watch"
    assert not guest.alive()["pids"]


def test_a_watchs_stop_does_not_talk_over_its_users(guest):
    guest.start("--steps", 2000, "--ignore-term")
    by_user = threading.Thread(target=lambda: guest.stop(grace_s=3))
    by_user.start()
    driver.wait_until((guest.dir("r") / "stop.json").exists)
    time.sleep(0.2)
    watch_stops(guest, 1)
    by_user.join()
    assert guest.look()["run"]["stop"]["by"] == "user"
    spec = {"argv": ["true"]}
    refused = guest.ask("start", run="r", attempt=2, spec=spec, unless_stopped=True)[-1]
    assert refused["code"] == "stopped_by_user"


def hangs(guest: driver.Guest) -> dict[str, Any]:
    """Start one that hangs, and wait for that; what a watch saw of it."""
    guest.start("--steps", 2000, "--hang-at", 3)
    log = guest.dir("r", 1) / "log"
    driver.wait_until(lambda: log.exists() and log.read_bytes().endswith(b"hanging\n"))
    return {"phase": guest.file("heartbeat.json")["phase"], "step": 3, "metrics_offset": 1 << 20}


def stop_unless_moved(guest: driver.Guest, seen: dict[str, Any]) -> driver.Message:
    words: dict[str, Any] = {"by": "watch", "reason": "hang", "grace_s": 0.5, "only_attempt": 1}
    return guest.ask("stop", run="r", unless_moved=seen, **words)[-1]


def test_a_watchs_stop_that_comes_after_the_run_went_on_leaves_it_alone(guest):
    """The request may have waited in a stalled connection; the run moved meanwhile."""
    seen = hangs(guest)
    refused = stop_unless_moved(guest, {**seen, "step": 2})
    assert refused["code"] == "moved"
    assert "at step 3" in refused["message"]
    assert guest.alive()["pids"]
    assert guest.look()["run"]["stop"] is None, "no intent is left behind"


@pytest.mark.parametrize("sign", ["metrics_offset", "log_offset"])
def test_a_line_of_metrics_or_a_word_of_the_log_is_a_sign_of_life_too(guest, sign):
    seen = hangs(guest)
    assert stop_unless_moved(guest, {**seen, sign: 0})["code"] == "moved"
    assert guest.alive()["pids"]


def test_a_watchs_stop_ends_what_still_stands_where_it_was_seen(guest):
    seen = hangs(guest)
    size = (guest.dir("r", 1) / "log").stat().st_size
    assert stop_unless_moved(guest, {**seen, "log_offset": size})["type"] == "stopped"
    assert not guest.alive()["pids"]


def test_a_watchs_stop_waits_for_its_users_word_that_is_being_written(guest):
    guest.start("--steps", 2000)
    folder = os.open(guest.dir("r"), os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)  # as the user's own stop does
    by_watch = threading.Thread(target=lambda: watch_stops(guest, 1))
    by_watch.start()
    time.sleep(1.0)
    word = {"schema": 1, "by": "user", "reason": "enough", "attempt": 1, "at": "2026-11-29T12:00:00.000000Z"}
    (guest.dir("r") / "stop.json").write_text(json.dumps(word))
    os.close(folder)
    by_watch.join()
    assert guest.look()["run"]["stop"]["by"] == "user"


def test_a_start_that_finishes_a_relaunch_needs_its_stop_to_be_the_last_word(guest):
    then = {"spec": {"argv": ["true"]}}
    guest.start("--steps", 2000)
    stopped = guest.ask("stop", run="r", by="user", reason="relaunch", grace_s=5, then=then)[-1]
    first = guest.look()["run"]["stop"]
    assert stopped["at"] == first["at"], "who asked can name its stop"
    assert first["then"] == then

    def finish(attempt: int, at: str) -> driver.Message:
        answer: driver.Message = guest.start(
            "--steps", 2000, attempt=attempt, unless_stopped=True, finishes=at
        )
        return answer

    assert finish(2, "2026-11-29T12:00:00.000000Z")["code"] == "stopped_by_user", "another stop was meant"
    guest.stop()  # its user thought better of it
    assert "then" not in guest.look()["run"]["stop"]
    assert finish(2, first["at"])["code"] == "stopped_by_user"
    guest.ask("stop", run="r", by="user", reason="relaunch", grace_s=5, then=then)
    assert finish(2, guest.look()["run"]["stop"]["at"])["type"] == "started"


def test_the_late_stop_of_a_relaunch_leaves_the_next_attempt_alone(guest):
    guest.start("--exit-code", 1, "--crash-at", 0)
    guest.exit()
    guest.start("--steps", 2000, attempt=2)
    words: dict[str, Any] = {"by": "user", "reason": "relaunch", "grace_s": 0.5, "only_attempt": 1}
    stopped = guest.ask("stop", run="r", then={"spec": {"argv": ["true"]}}, **words)[-1]
    assert (stopped["already"], stopped["terminated"], stopped["killed"]) == (True, [], [])
    assert guest.alive()["pids"]
    assert stopped["at"] is None
    assert guest.look()["run"]["stop"] is None, "nobody is to start anything in its place"


def test_a_stop_of_one_attempt_that_waits_for_its_turn_does_not_mean_the_next(guest):
    """The next one began after the stop had seen that there was none."""
    guest.start("--exit-code", 1, "--crash-at", 0)
    guest.exit()
    folder = os.open(guest.dir("r"), os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    late = threading.Thread(target=lambda: watch_stops(guest, 1))
    late.start()
    time.sleep(1.0)
    guest.start("--steps", 2000, attempt=2)
    os.close(folder)
    late.join()
    assert guest.alive()["pids"]
    assert guest.look()["run"]["stop"] is None
