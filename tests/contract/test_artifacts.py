"""Trainer and orchestrator meet on disk: compile artifacts and environment.json, written here, read there."""

from __future__ import annotations

import pytest
import torch

from orchestrator.compare import Attempt, compare, group_of
from orchestrator.compilecache import Store
from trainer.compiling import artifacts
from trainer.config import Config
from trainer.environment import fingerprint

pytestmark = pytest.mark.torch


class Info:
    artifacts = {"inductor": ["a", "b"]}  # noqa: RUF012


def test_what_the_trainer_saves_is_whole_to_the_store_and_the_other_way_round(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", lambda: (b"compiled code", Info))
    origin = artifacts.describe(torch.device("cpu"), "inductor", {"rows": [1, 2]})
    store = Store(tmp_path)
    folder = store.folder("pve/200", "b32")
    assert artifacts.save(folder, origin, compile_s=1.5)
    (found,) = store.artifacts("pve/200", "b32", check=True)
    assert (found.fingerprint, found.torch, found.problem) == (origin.fingerprint, torch.__version__, None)
    assert (found.num_bytes, found.compile_s) == (len(b"compiled code"), 1.5)
    assert found.at is not None


def test_every_key_of_environment_json_has_a_group(tmp_path):
    told = fingerprint(Config(), corpus="c", target_sha256="t", compile_cache=tmp_path)
    assert [
        key for key in told if group_of(f"environment.{key}.x") == group_of(f"environment.{key}") == "other"
    ] == []
    changes = compare(
        Attempt(run="r", number=1, environment={}, spec={}),
        Attempt(run="r", number=2, environment=told, spec={}),
    ).changes
    assert [change.key for change in changes if change.group == "other"] == []
    assert {"torch build", "machine", "code", "configuration", "data"} <= {change.group for change in changes}
