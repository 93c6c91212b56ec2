"""Ranks that torchrun started by hand in a run's directory are the run: nothing is doubled or removed."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.integration import guest_driver as driver

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not driver.HAS_TMUX, reason="no tmux")]

COME = """
import os, sys
from pathlib import Path
from trainer.rundir import open_run_dir
print(open_run_dir(os.environ, Path(sys.argv[1])).attempt.name, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def guest(tmp_path):
    yield from driver.lend(tmp_path)


@pytest.fixture
def ranks(guest: driver.Guest) -> Iterator[list[subprocess.Popen[str]]]:
    """Two ranks in attempt 2 of a run whose first attempt died."""
    guest.start("--exit-code", 1, "--crash-at", 0)
    guest.exit()
    told = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "a", "WORLD_SIZE": "2"}
    kept = {name: value for name, value in guest.env.items() if not name.startswith("DFLASHCTL_")}
    begun = [
        subprocess.Popen(
            [sys.executable, "-c", COME, str(guest.dir("r"))],
            env={**kept, **told, "RANK": str(rank)}, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]  # fmt: skip
    assert all(rank.stdout is not None and rank.stdout.readline() == "2\n" for rank in begun)
    yield begun
    for rank in begun:
        rank.kill()
        rank.communicate()


def test_ranks_begun_by_hand_are_alive_and_no_second_trainer_starts_beside_them(guest, ranks):
    assert guest.alive()["lock_held"] is True
    assert guest.start(attempt=3)["code"] == "run_alive"
    removed = guest.ask("remove", run="r", what="run", keep=0)[-1]
    assert removed["code"] == "run_alive"
    assert guest.ask("sizes", run="r", what="run", keep=0)[-1]["alive"] is True


def test_a_watch_sees_them_come_and_go(guest, ranks):
    watch = guest.watch()
    watch.until(lambda m: m["type"] == "run" and m["attempt"] == 2 and m["alive"] and m["alive"]["lock_held"])
    ranks[0].communicate()
    driver.wait_until(lambda: guest.alive()["lock_held"])
    ranks[1].communicate()
    watch.until(lambda m: m["type"] == "run" and m["alive"] and not m["alive"]["lock_held"])
    watch.close()
    assert guest.start("--steps", 1, attempt=3)["type"] == "started"


def test_their_user_s_stop_ends_them_and_nobody_else(guest, ranks):
    bystander = subprocess.Popen(["sleep", "3600"], cwd=guest.dir("r"))
    stopped = guest.stop()
    assert stopped["type"] == "stopped"
    assert sorted({*stopped["terminated"], *stopped["killed"]}) == sorted(rank.pid for rank in ranks)
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
    assert (guest.dir("r", 2) / "exit.json").exists()
