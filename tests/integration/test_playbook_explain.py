"""playbook explain over real runs: what comes next, without doing any of it."""

from __future__ import annotations

import json
import shutil
from datetime import datetime

import pytest

from tests.integration.local import Local, local_runs, wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux"),
]
LADDER = """extends: default
backoff: [2h]
jitter: 0
rules:
  fx_trace_race:
    act: relaunch_with
    why: The test climbs a ladder.
    ladder:
      - {why: A variable first., env: {SOME_VALUE: "1"}}
      - {why: A setting that a command does not take., set: {loss.chunk_tokens: 512}}
      - {why: Another variable., env: {OTHER_VALUE: "1"}}
"""


@pytest.fixture
def local(tmp_path):
    with local_runs(tmp_path) as runs:
        yield runs


def ended(local: Local, run: str, attempt: int = 1) -> None:
    path = local.state / "runs" / run / "attempts" / str(attempt) / "exit.json"
    wait_until(lambda: path.exists() and not local.trainers(run), what="the attempt's end")


def explain(local: Local, run: str, *words: str):
    return local.json("playbook", "explain", run, *words)


def test_a_death_is_explained_with_its_budget_its_time_and_its_next_rung(local):
    local.playbook.write_text(LADDER)
    local.begin_standin("r1", "--steps", "9", "--crash-at", "3", "--crash-attempts", "9", "--fx-text")
    ended(local, "r1")
    body = explain(local, "r1")
    assert (body["state"], body["failure"]) == ("dead", "fx_trace_race")
    decision = body["decision"]
    assert (decision["kind"], decision["rung"], decision["env"]) == ("relaunch_with", 0, {"SOME_VALUE": "1"})
    died = json.loads((local.state / "runs/r1/attempts/1/exit.json").read_text())["at"]
    at, died_at = (datetime.fromisoformat(each.replace("Z", "+00:00")) for each in (decision["act_at"], died))
    wait_s = (at - died_at).total_seconds()
    assert abs(wait_s - 7200) < 5, "the wait counts from the death, not from the look"
    assert not decision["is_due"]
    assert [rung["state"] for rung in body["ladder"]] == ["next", "to come", "to come"]
    assert body["budgets"] == [{"cause": body["fingerprint"], "spent": 0, "allowed": 3}]
    assert body["ceiling"] == {"attempts": 1, "allowed": 12}
    assert body["gates"] == []
    assert local.attempts("r1") == [1], "nothing was done"

    local.playbook.write_text(LADDER.replace("2h", "0s"))
    watch = local.watch("r1")
    wait_until(lambda: local.attempts("r1")[-1] == 3, what="two relaunches")
    ended(local, "r1", 3)
    watch.kill()
    text = local.run("playbook", "explain", "r1").stdout
    assert "next: give_up." in text
    assert "budget:" in text
    assert "ladder: rung 2 tried" in text or "ladder: rung 2 passed over" in text
    assert "ceiling: 3 of 12 attempts in 24 hours" in text


@pytest.mark.slow
def test_a_living_run_is_left_alone_and_may_be_asked_what_if(local):
    local.begin_standin("r1", "--steps", "600", "--step-s", "0.1")
    body = explain(local, "r1")
    assert (body["decision"]["kind"], body["decision"]["reason"]) == ("none", "it is alive")
    assert (body["ladder"], body["gates"], body["budgets"]) == ([], [], [])
    supposed = explain(local, "r1", "--if", "oom_host")
    assert supposed["supposed"] is True
    assert (supposed["decision"]["kind"], supposed["decision"]["attempts_left"]) == ("relaunch", 0)
    assert supposed["gates"] == [], "that it lives is no gate of an attempt after its death"
    called = explain(local, "r1", "--if", "import_error")["decision"]
    assert (called["kind"], called["act_at"]) == ("call", None)
    assert local.attempts("r1") == [1]
    assert len(local.trainers("r1")) == 1


@pytest.mark.slow
def test_a_rule_of_the_users_own_is_what_comes_next(local):
    own = "{name: licence, regex: licence server is away, act: wait, why: The licence server comes back.}"
    local.playbook.write_text(f"extends: default\ncustom: [{own}]\n")
    local.begin("r1", "python3", "-c", "print('licence server is away'); raise SystemExit(3)")
    ended(local, "r1")
    decision = explain(local, "r1")["decision"]
    assert (decision["kind"], decision["rule"]) == ("wait", "custom:licence")
    assert local.json("status", "r1", code=None)["state"] == "dead"


def test_a_command_without_a_heartbeat_is_told_what_would_be_a_hang(local):
    local.playbook.write_text("extends: default\nlimits: {silence: 30m}\n")
    local.begin("r5", "sh", "-c", "echo begun; exec sleep 600")
    log = local.state / "runs/r5/attempts/1/log"
    wait_until(lambda: log.exists() and log.read_text() == "begun\n", what="its first word")
    body = explain(local, "r5")
    assert (body["state"], body["decision"]["kind"]) == ("healthy", "none")
    assert "a log that is silent for 30m is a hang" in body["summary"]
