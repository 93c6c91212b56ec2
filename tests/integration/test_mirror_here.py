"""A real watch keeps the log of a real run here; it outlives the run's directory, and goes by `rm`."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from orchestrator.errors import Exit
from tests.integration.local import Local, local_runs, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

SAYS = """\
import os, sys, time
for number in range(60):
    print(f"\\x1b[32mline {number}\\x1b[0m", flush=True)
    while number == 30 and not os.path.exists(sys.argv[1]):
        time.sleep(0.02)
print("the end is not a line", end="")
"""


@pytest.fixture
def local(tmp_path) -> Iterator[Local]:
    with local_runs(tmp_path) as here:
        yield here


def test_a_watch_keeps_the_log_and_logs_reads_it_without_the_run(local):
    goes_on = local.home / "goes-on"
    local.begin("r", "python3", "-c", SAYS, str(goes_on))
    first = local.watch("r", "--no-log")
    kept = local.home / "state" / "dflashctl" / "record.sqlite3.logs"
    wait_until(lambda: list(kept.glob("*/attempt-1.tail")), what="the first bytes are kept")
    first.kill()
    goes_on.touch()
    second = local.watch("r")
    assert second.end() == 0, second.story()
    assert "mirror" not in {event["kind"] for event in second.events()}, "nothing went wrong"
    log = (local.state / "runs" / "r" / "attempts" / "1" / "log").read_text()
    never = local.run("logs", "r", "--attempt", "9", code=Exit.NOT_FOUND).stderr
    assert "no attempt 9 (there are: 1)" in never
    assert "--local" not in never, "the copy has no such attempt either"
    shutil.rmtree(local.state / "runs")
    done = local.run("logs", "r", "--local", "--raw", "--tail", "0")
    assert done.stdout == log
    assert "the attempt has ended" in done.stderr
    gone = local.run("logs", "r", code=Exit.NOT_FOUND)
    assert "`dflashctl logs r --local` reads it" in gone.stderr
    assert "copied logs removed here" in local.run("rm", "r", "--forget").stdout
    assert list(kept.glob("*-*")) == []
