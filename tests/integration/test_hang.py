"""A hang in the lab: seen, looked into, told, stopped and relaunched; its stacks stay with the attempt."""

from __future__ import annotations

import hashlib
import re

import pytest

from tests.cli import Cli, is_kind
from tests.integration.clilab import cli

__all__ = ["cli"]
pytestmark = pytest.mark.integration

PLAYBOOK = "extends: default\nbackoff: [0s]\njitter: 0\ngrace: 2s\nlimits: {train: 12s, init: 5m, load: 5m}\n"


@pytest.fixture
def run(request) -> str:
    return f"hang-{hashlib.sha256(request.node.name.encode()).hexdigest()[:6]}"


def launch(cli: Cli, lab, run: str, *settings: str) -> None:
    (cli.home / "playbook.yaml").write_text(PLAYBOOK)
    words = [word for setting in settings for word in ("--set", setting)]
    cli.launch("--run", run, "--python", str(lab.torch_python), "--config", "fast", "--inject", "hang@12",
               "--playbook", str(cli.home / "playbook.yaml"), *words, timeout=300)  # fmt: skip


def way(lab):
    """py-spy where it is installed beside the trainer's interpreter, which the gates do."""
    return "py-spy" if (lab.torch_python.parent / "py-spy").exists() else "faulthandler"


def test_a_trainer_that_hangs_says_where_before_it_is_stopped_and_relaunched(cli, lab, run):
    launch(cli, lab, run)
    watch = cli.watch(run)
    assert watch.end() == 0, watch.story()
    hung = watch.wait_for(is_kind("diagnosis", state="hung"))
    assert (hung["attempt"], hung["detail"]["failure"]) == (1, "hang")
    assert any(each["source"] == "log" for each in hung["detail"]["evidence"]), "each reading is told"
    told = watch.wait_for(is_kind("stacks"))
    (rank,) = told["detail"]["ranks"]
    assert (rank["rank"], rank["how"]) == (0, way(lab)), told
    assert "failures.py" in rank["place"], "the main thread waits where the hang was injected"
    kinds = [event["kind"] for event in watch.events() if event["attempt"] == 1]
    assert kinds.index("stacks") < kinds.index("act"), "asked before anything was done"
    explained = cli.json("explain", run, "--attempt", "1")
    assert [told["text"]] == explained["stacks"]
    kept = cli.json("stacks", run, "--kept", "--attempt", "1")
    (text,) = kept["files"].values()
    assert re.search(r'File ".*/trainer/failures\.py", line \d+|\(.*trainer/failures\.py:\d+\)', text), text
    assert len(re.findall(r"^(?:Current t|T)hread \w+", text, re.MULTILINE)) >= 2, "of every thread"
    status = cli.json("status", run)
    assert (status["state"], status["attempt"]) == ("finished", 2)


@pytest.mark.slow
def test_a_person_asks_a_living_trainer_of_two_ranks_and_it_trains_on(cli, lab, run):
    (cli.home / "playbook.yaml").write_text(PLAYBOOK)
    cli.launch("--run", run, "--python", str(lab.torch_python), "--config", "fast", "--inject", "slow@3!",
               "--set", "parallel.processes=2", "--set", "total_steps=400", timeout=300)  # fmt: skip
    watch = cli.watch(run)
    watch.wait_for(lambda e: e["kind"] == "metrics" or e["text"].startswith("step 3"))
    asked = cli.json("stacks", run)
    assert [(one["rank"], one["how"]) for one in asked["ranks"]] == [(0, way(lab)), (1, way(lab))]
    assert all("trainer/" in one["text"] for one in asked["ranks"])
    assert asked["problems"] == []
    before = cli.json("status", run)
    watch.wait_for(lambda e: e["kind"] == "metrics" and e["detail"]["step"] > before["step"] + 1)
    assert cli.json("status", run)["attempt"] == 1, "it trains on"
