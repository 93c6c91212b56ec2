"""A trainer of the user's own that writes no heartbeat: its steps stop, which a watch sees and ends."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.cli import is_kind
from tests.integration.clilab import RUNS, cli

if TYPE_CHECKING:
    from tests.cli import Watching

__all__ = ["cli"]
pytestmark = pytest.mark.integration

PLAYBOOK = """\
extends: default
backoff: [0s]
jitter: 0
grace: 0s
limits: {train: 6s, eval: 6s, checkpoint: 6s, export: 6s}
"""
# It knows no signal of ours: whichever but the stop's SIGTERM came would be its end, and in exit.json.
TRAINER = """
import os, time
is_first = os.environ["DFLASHCTL_ATTEMPT"] == "1"
step = 0
while step < 1 or (is_first and not os.path.exists(os.environ["DFLASHCTL_RUN_DIR"] + "/be-silent")):
    step += 1
    print(f"step {step}/500 loss {5 / step:.3f}", flush=True)
    time.sleep(0.35)
if is_first:
    time.sleep(600)
"""
TAUGHT = 20  # steps under watch, which looks about twice a second and has to see five intervals


def test_steps_that_stop_are_told_hung_by_their_limit_and_the_run_is_relaunched(cli, lab):
    run = "silent"
    (cli.home / "playbook.yaml").write_text(PLAYBOOK)
    cli.launch("--run", run, "--playbook", str(cli.home / "playbook.yaml"), "--", "python3", "-c", TRAINER)
    watch = cli.watch(run)
    watch.wait_for(is_kind("state", state="healthy"))
    begun = max(told_steps(watch))
    watch.wait_for(lambda _: max(told_steps(watch)) >= begun + TAUGHT)
    (lab.rootfs / RUNS / run / "be-silent").touch()
    assert watch.end() == 0, watch.story()
    events = watch.events()
    (hung,) = (event for event in events if is_kind("diagnosis", state="hung")(event))
    assert (hung["attempt"], hung["detail"]["failure"]) == (1, "hang")
    assert re.search(r"its log fell silent at step \d+ for \d+s \(limit \d+s\)", hung["text"]), hung["text"]
    kinds = [event["kind"] for event in events if event["attempt"] == 1]
    assert kinds.index("stacks") < kinds.index("act"), "asked before anything was done"
    (told,) = (event for event in events if event["kind"] == "stacks")
    assert {rank["how"] for rank in told["detail"]["ranks"]} <= {"py-spy", "none"}, "it registered no signal"
    ended = json.loads((lab.rootfs / RUNS / run / "attempts" / "1" / "exit.json").read_text())
    assert (ended["code"], ended["signal"]) == (None, 15), "the stop ended it, and no question before it"
    dead = next(event for event in events if is_kind("diagnosis", state="dead")(event))
    assert dead["detail"]["fingerprint"] == hung["detail"]["fingerprint"]
    assert any(e["attempt"] == 2 and is_kind("diagnosis", state="finished")(e) for e in events)


def told_steps(watch: Watching) -> list[int]:
    """The steps of the lines that the watch has told."""
    return [int(n) for event in watch.events() for n in re.findall(r"^step (\d+)/", event["text"])] or [0]
