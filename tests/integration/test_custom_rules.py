"""A rule of the user's own in a real watch: it names the death, its act is done, and explain tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.errors import Exit
from tests.cli import is_kind
from tests.integration.local import Local, local_runs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration

BOOK = """\
extends: default
backoff: [0s]
jitter: 0
custom:
  - name: lustre_stall
    regex: 'LustreError: .*timed out'
    class: io_error
    label: Lustre did not answer
    act: relaunch
    attempts: 2
    why: The servers come back by themselves.
"""
STALL = "echo begin; echo 'LustreError: 11-0: timed out'; sleep 1; test $DFLASHCTL_ATTEMPT = 2 || exit 1"


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    with local_runs(tmp_path) as runs:
        yield runs


def test_a_death_is_named_by_the_users_rule_and_relaunched_by_it(local):
    local.playbook.write_text(BOOK)
    local.begin("r", "sh", "-c", STALL)
    watch = local.watch("r", "--playbook", str(local.playbook))
    dead = watch.wait_for(is_kind("diagnosis", state="dead"))
    assert dead["detail"]["failure"] == "io_error", watch.story()
    assert "Lustre did not answer" in dead["text"]
    assert dead["detail"]["evidence"][0]["offset"] == len("begin\n")
    decision = watch.wait_for(is_kind("decision"))["detail"]
    assert (decision["kind"], decision["rule"]) == ("relaunch", "custom:lustre_stall")
    # The second attempt prints the same line and ends well: a rule says nothing of a run that is not dead.
    assert watch.end() == Exit.OK, watch.story()
    assert [e["attempt"] for e in watch.events() if e["kind"] == "decision"] == [1]
    told = local.json("explain", "r", "--attempt", "1")
    assert told["rule"]["act"] == "relaunch"
    assert told["failure"] == "io_error"
