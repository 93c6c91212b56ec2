"""What is noticed of a run that goes on: a log that fills its disk, a lost tmux session."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.cli import is_kind
from tests.integration.local import Local, local_runs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration

FLOOD = (
    "i=0; while [ $i -lt 900 ]; do head -c 100000 /dev/zero | tr '\\0' x; echo; i=$((i+1)); sleep 0.1; done"
)


@pytest.fixture
def local(tmp_path) -> Iterator[Local]:
    with local_runs(tmp_path) as here:
        yield here


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 160 MB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow
def test_a_log_that_fills_its_disk_is_told_in_time_and_seen_in_status_and_explain(local, small_disk):
    script = local.home / "flood.sh"
    script.write_text(FLOOD)
    local.launch("--run", "flood", "--state-dir", str(small_disk), "--", "sh", str(script))
    try:
        watch = local.watch("flood", "--no-log")
        told = watch.wait_for(is_kind("disk", failure="disk_full"))
        assert "the disk is full in about" in told["text"]
        assert told["level"] == "warning"
        status = local.json("status", "flood")
        assert status["state"] == "healthy"
        assert status["log_bytes"] > 10_000_000
        assert 0 < status["disk_free_bytes"] < 160 << 20
        explained = local.json("explain", "flood")
        assert (explained["failure"], explained["state"]) == ("disk_full", "healthy")
        assert explained["evidence"][0]["role"] == "prediction"
        assert watch.process.poll() is None, "a warning ends no watch"
        kinds = [event["kind"] for event in watch.events()]
        assert kinds.count("disk") == 1
        assert not {"decision", "act"} & set(kinds)
    finally:
        local.end_watches()
        local.run("stop", "flood", "--grace", "0s")


@pytest.mark.slow
def test_a_lost_tmux_session_is_told_once_and_the_run_ends_as_if_nothing_were(local):
    local.begin_standin("alone", "--steps", "60", "--step-s", "0.1", "--cue", str(local.cue))
    watch = local.watch("alone")
    watch.wait_for(lambda e: e["kind"] == "log" and e["text"].startswith("step 5/"))
    local.tmux("kill-server")
    told = watch.wait_for(is_kind("session", failure="session_lost"))
    assert "the trainer lives" in told["text"]
    local.cue.touch()
    assert watch.end() == 0, watch.story()
    kinds = [event["kind"] for event in watch.events()]
    assert kinds.count("session") == 1
    assert not {"decision", "act"} & set(kinds), watch.story()
    assert local.json("status", "alone")["attempt"] == 1
