"""A recording has what the host's kernel said, over real ssh, and a replay knows by it what happened."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from orchestrator.errors import Exit
from tests.integration.clilab import cli
from tests.integration.test_host_kernel import KILLED, begin, death, host, kill, oom, trainer

if TYPE_CHECKING:
    from tests.cli import Cli
    from tests.lab.lab import Lab

pytestmark = pytest.mark.integration
__all__ = ["cli", "host"]


def test_an_oom_kill_is_recorded_with_the_kernels_lines_and_another_containers_is_not(cli: Cli, host: Lab):
    watch = begin(cli, "oom")
    host.kernel_says(oom(host, 4711, ct=201))
    kill(host, "oom", oom(host, trainer(host, "oom")), KILLED, watch=watch)
    assert death(watch)["detail"]["failure"] == "oom_host"
    watch.kill()
    body = cli.json("record", "oom", "-o", "rec")
    assert body["unreached"] is None
    lines = (cli.home / "rec" / "attempts" / "1" / "kernel.jsonl").read_text().splitlines()
    kept = [json.loads(line)["line"] for line in lines]
    assert any("oom-kill" in line for line in kept)
    assert not any("4711" in line for line in kept)
    told = cli.json("replay", "rec", code=Exit.OK)["replays"][0]["told"]
    dead = [each for each in told if each["kind"] == "diagnosis" and each["diagnosis"]["state"] == "dead"]
    assert dead[0]["diagnosis"]["class"] == "oom_host"
