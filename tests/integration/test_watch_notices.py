"""What is noticed of a run that goes on, in the lab: a log that fills its disk, a lost tmux session."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.cli import ROOT, Cli, is_kind
from tests.integration.clilab import STANDIN, options

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

SMALL = "/mnt/small-disk"
FLOOD = (
    "i=0; while [ $i -lt 600 ]; do head -c 100000 /dev/zero | tr '\\0' x; echo; i=$((i+1)); sleep 0.1; done"
)


@pytest.fixture
def cli(lab, tmp_path) -> Iterator[Cli]:
    made = Cli(tmp_path, (*options(lab), "--ct", "200"))
    made.root = lab.rootfs
    yield made
    made.end_watches()


@pytest.fixture
def small_disk(lab) -> Iterator[str]:
    """A file system of 160 MB in the container."""
    lab.exec(["mkdir", "-p", SMALL])
    lab.exec(["mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", SMALL])
    try:
        yield SMALL
    finally:
        lab.exec(["umount", "-l", SMALL])


def test_a_log_that_fills_its_disk_is_told_in_time_and_seen_in_status_and_explain(cli, small_disk):
    cli.launch("--run", "flood", "--state-dir", small_disk, "--", "sh", "-c", FLOOD)
    try:
        watch = cli.watch("flood", "--no-log")
        told = watch.wait_for(is_kind("disk", failure="disk_full"), 100)
        assert "the disk is full in about" in told["text"]
        assert told["level"] == "warning"
        status = cli.json("status", "flood")
        assert status["state"] == "healthy"
        assert status["log_bytes"] > 10_000_000
        assert 0 < status["disk_free_bytes"] < 160 << 20
        explained = cli.json("explain", "flood")
        assert (explained["failure"], explained["state"]) == ("disk_full", "healthy")
        assert explained["evidence"][0]["role"] == "prediction"
        assert watch.process.poll() is None, "a warning ends no watch"
        kinds = [event["kind"] for event in watch.events()]
        assert kinds.count("disk") == 1
        assert not {"decision", "act"} & set(kinds)
    finally:
        cli.run("stop", "flood", "--grace", "0s")


def test_a_lost_tmux_session_is_told_once_and_the_run_ends_as_if_nothing_were(cli, lab):
    shutil.copy(ROOT / "tests" / "standin.py", cli.root / STANDIN.lstrip("/"))
    cli.launch("--run", "alone", "--", "python3", STANDIN, "--steps", "300", "--step-s", "0.1")
    watch = cli.watch("alone")
    watch.wait_for(lambda e: e["kind"] == "log" and e["text"].startswith("step 5/"))
    lab.exec(["tmux", "-L", "dflashctl", "kill-server"])
    told = watch.wait_for(is_kind("session", failure="session_lost"), 40)
    assert "the trainer lives" in told["text"]
    assert watch.end(90) == 0, watch.story()
    kinds = [event["kind"] for event in watch.events()]
    assert kinds.count("session") == 1
    assert not {"decision", "act"} & set(kinds), watch.story()
    assert cli.json("status", "alone")["attempt"] == 1
