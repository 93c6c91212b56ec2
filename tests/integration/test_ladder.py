"""A ladder with the real trainer on this machine: what it scales is what the trainer really used."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys

import pytest

from tests.cli import is_kind
from tests.integration.local import local_runs

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch"),
]
LESS = """extends: default
backoff: [0s]
jitter: 0
rules:
  python_exception:
    act: relaunch_with
    why: The test climbs a ladder that begins at the trainer's own configuration.
    ladder:
      - {why: Fewer anchors first., scale: {data.anchors: 0.5}}
      - {why: Half of the logits at one time., scale: {loss.chunk_tokens: 0.5}, env: {SOME_VALUE: "1"}}
"""


@pytest.mark.slow
def test_a_ladder_scales_what_the_trainer_really_used_within_what_is_allowed(tmp_path):
    with local_runs(tmp_path) as local:
        local.playbook.write_text(LESS)
        local.launch("--run", "less", "--python", sys.executable, "--config", "fast", "--inject", "python@6",
                     "--playbook", str(local.playbook), timeout=300)  # fmt: skip
        watch = local.watch("less")
        assert watch.end() == 0, watch.story()
        decision = watch.wait_for(is_kind("decision"))
        assert decision["detail"]["changes"] == {"loss.chunk_tokens": "2048"}, decision
        assert decision["detail"]["env_changes"] == {"SOME_VALUE": "1"}
        assert "rung 1 is passed over: data.anchors may not be changed" in decision["text"]
        folder = local.state / "runs" / "less" / "attempts" / "2"
        spec = json.loads((folder / "run.json").read_text())
        assert (spec["rung"], spec["changes"]) == (1, {"loss.chunk_tokens": "2048"})
        assert spec["env_changes"] == {"SOME_VALUE": "1"}
        config = json.loads((folder / "environment.json").read_text())["config"]
        assert (config["loss"]["chunk_tokens"], config["data"]["anchors"]) == (2048, 16)
