"""The exported drafter: where it may be put, and what is checked of it before it is there."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.exported import count_tensors, require_free, serving_lines


def weights(path: Path, header: Any, size: int = 12) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * size)
    return path


HEADER = {
    "__metadata__": {"format": "pt"},
    "fc.weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    "norm.weight": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]},
}


def test_the_tensors_of_a_whole_file_are_counted(tmp_path):
    assert count_tensors(weights(tmp_path / "a", HEADER)) == 2


@pytest.mark.parametrize("size", [0, 11, 13])
def test_a_file_whose_bytes_are_not_those_of_its_header_is_refused(tmp_path, size):
    with pytest.raises(OrchestratorError, match="are not those that its header tells of"):
        count_tensors(weights(tmp_path / "a", HEADER, size))


@pytest.mark.parametrize(
    "header", [b"{{", b"[]", {"a": {}}, {"a": {"data_offsets": [0]}}, {"a": 1}, b"\xff\xfe"]
)
def test_a_header_that_cannot_be_read_is_refused(tmp_path, header):
    with pytest.raises(OrchestratorError, match="header cannot be read"):
        count_tensors(weights(tmp_path / "a", header))


@pytest.mark.parametrize("data", [b"", b"\0" * 64, b"\xff" * 64, b"PK\x03\x04zip" * 9])
def test_what_is_no_safetensors_file_is_refused(tmp_path, data):
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(OrchestratorError, match="no safetensors file"):
        count_tensors(tmp_path / "a")


def test_a_folder_that_is_free_is_taken_and_one_that_is_not_needs_force(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "full" / name).touch()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "full")
    require_free(tmp_path / "new", force=False)
    require_free(tmp_path / "empty", force=False)
    require_free(tmp_path / "full", force=True)
    with pytest.raises(ConfigError, match="--force"):
        require_free(tmp_path / "full", force=False)
    for name in ("file", "link"):
        with pytest.raises(ConfigError, match="no folder"):
            require_free(tmp_path / name, force=True)


def test_a_folder_of_something_else_is_not_replaced_even_with_force(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").touch()
    for force in (False, True):
        with pytest.raises(ConfigError, match="no drafter is in it"):
            require_free(tmp_path / "home", force=force)


def test_the_servers_are_told_the_block_each_in_its_own_count():
    vllm, sglang = serving_lines(Path("/a b/it's"), 16)
    words = shlex.split(vllm)
    told = json.loads(words[words.index("--speculative-config") + 1])
    assert told == {"method": "dflash", "model": "/a b/it's", "num_speculative_tokens": 15}
    words = shlex.split(sglang)
    assert words[words.index("--speculative-draft-model-path") + 1] == "/a b/it's"
    assert words[-2:] == ["--speculative-num-draft-tokens", "16"]
    assert "BLOCK_SIZE" in serving_lines(Path("/a"), None)[0]
