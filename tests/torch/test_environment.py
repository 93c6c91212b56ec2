"""environment.json: all of what `dflashctl diff` compares, and no value of an environment variable."""

import json

import pytest
import torch

from trainer.config import Config
from trainer.environment import fingerprint

pytestmark = pytest.mark.torch


def test_it_is_json_and_tells_builds_code_cache_configuration_and_data(tmp_path, monkeypatch):
    monkeypatch.setenv("A_TOKEN", "s3cret")
    monkeypatch.setenv("DFLASHCTL_RUN_DIR", str(tmp_path))
    told = fingerprint(Config(), corpus="c", target_sha256="t", overrides=["optim.lr=1e-4"])
    text = json.dumps(told, allow_nan=False)
    assert "s3cret" not in text
    assert "A_TOKEN" in told["env_names"]
    assert told["torch"] == torch.__version__
    assert told["torch_build"]["git"] == torch.version.git_version
    assert (told["corpus_sha256"], told["target_sha256"], told["overrides"]) == ("c", "t", ["optim.lr=1e-4"])
    assert told["config"]["optim"]["lr"] == Config().optim.lr
    assert "environment.py" in told["code"]["files"]
    assert len(told["wheels"]["torch"]) == 64
    assert told["compile_cache"]["present"] is False
    assert len(told["gpus"]) == torch.cuda.device_count()


def test_two_calls_differ_in_time_alone_until_the_cache_is_filled(tmp_path):
    def call():
        told = fingerprint(Config(), corpus="c", target_sha256="t", compile_cache=tmp_path)
        told.pop("at")
        return told

    first = call()
    assert call() == first
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts" / "ab.json").write_text("{}")
    second = call()
    assert second["compile_cache"]["artifacts"] == ["ab"]
    assert {key for key in first if first[key] != second[key]} == {"compile_cache"}
