"""A watch's stop means one attempt; a person's stop means the run, and is not talked over."""

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
