"""Who watches, over the real guest: a file a watcher, as long as its guest lives."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.integration import guest_driver as driver

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not driver.HAS_TMUX, reason="no tmux")]

ANN = {"user": "ann", "host": "laptop", "pid": 12, "acts": True}
BOB = {"user": "bob", "host": "desk", "pid": 7, "acts": False}


@pytest.fixture
def guest(tmp_path):
    yield from driver.lend(tmp_path)


def told(found: dict[str, Any]) -> list[tuple[str, bool, bool]]:
    return [(each["user"], each["acts"], each["me"]) for each in found["watchers"]]


def test_two_watchers_are_told_of_each_other_and_of_an_end(guest):
    ann = guest.watch(watcher=ANN)
    assert told(ann.until("watchers")) == [("ann", True, True)]
    bob = guest.watch(watcher=BOB)
    assert told(bob.until("watchers")) == [("ann", True, False), ("bob", False, True)]
    assert told(ann.until("watchers")) == [("ann", True, True), ("bob", False, False)]
    bob.process.send_signal(signal.SIGKILL)
    bob.process.wait()
    bob.close()
    assert told(ann.until("watchers")) == [("ann", True, True)]
    assert len(driver.names(guest.state / "watchers")) == 1, "what a killed one left is removed"
    ann.close()
    assert driver.names(guest.state / "watchers") == []


def test_a_look_tells_who_watches_and_is_no_watcher(guest):
    guest.start("--steps", 3)
    assert told(guest.look()["watchers"]) == []
    ann = guest.watch(watcher=ANN)
    ann.until("watchers")
    assert told(guest.look()["watchers"]) == [("ann", True, False)]
    ann.close()
    assert told(guest.look()["watchers"]) == []


def test_a_watcher_without_a_word_of_itself_is_not_told(guest):
    nobody = guest.watch()
    assert told(nobody.until("watchers")) == []
    nobody.close()


def test_a_file_that_nobody_holds_or_that_is_none_is_passed_over(guest):
    folder = guest.state / "watchers"
    folder.mkdir(parents=True)
    (folder / "old.json").write_text('{"user": "gone"}')
    (folder / "link.json").symlink_to("/etc/passwd")
    (folder / "other").write_text("x")
    ann = guest.watch(watcher={**ANN, "user": "x" * 5000})
    (found,) = ann.until("watchers")["watchers"]
    assert len(found["user"]) == 64
    assert driver.names(folder)[-2:] == ["link.json", "other"]
    ann.close()
