"""The compile cache as a file: loaded if it is whole and its own, else told and left out."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch.compiler._cache import CacheArtifactManager

from trainer.compiling import artifacts
from trainer.compiling.artifacts import Origin

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.torch

KEY, CONTENT = "aexample", b"a graph"


@pytest.fixture(autouse=True)
def _one_graph_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch's record of what this process compiled holds one entry, and its cache is empty."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    CacheArtifactManager.clear()
    CacheArtifactManager._ensure_cache_artifacts_registered()
    CacheArtifactManager.record_artifact("aot_autograd", KEY, CONTENT)
    yield
    CacheArtifactManager.clear()


@pytest.fixture
def origin() -> Origin:
    return artifacts.describe(torch.device("cpu"), "inductor", {"rows": (2, 4), "width": 8})


@pytest.fixture
def saved(tmp_path: Path, origin: Origin) -> Path:
    directory = tmp_path / "artifacts"
    assert artifacts.save(directory, origin, compile_s=1.5) is not None
    return directory


def cached_graphs(tmp_path: Path) -> list[bytes]:
    return [path.read_bytes() for path in (tmp_path / "inductor").rglob("*") if path.is_file()]


def test_what_is_saved_is_loaded_into_the_cache(tmp_path, saved, origin):
    loaded = artifacts.load(saved, origin)
    assert loaded.entries == 1
    assert loaded.line == f"compile cache: loaded 1 entries of {saved / origin.fingerprint}.bin"
    assert cached_graphs(tmp_path) == [CONTENT]


def test_the_file_says_what_it_is(saved, origin):
    value = json.loads((saved / f"{origin.fingerprint}.json").read_bytes())
    data = (saved / f"{origin.fingerprint}.bin").read_bytes()
    canonical = json.dumps(value["origin"], sort_keys=True, separators=(",", ":")).encode()
    assert value["fingerprint"] == hashlib.sha256(canonical).hexdigest() == origin.fingerprint
    assert value["bin"] == {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    assert (value["schema"], value["entries"], value["compile_s"]) == (1, {"aot_autograd": 1}, 1.5)
    assert value["origin"]["torch"] == torch.__version__
    assert value["origin"]["shapes"] == {"rows": [2, 4], "width": 8}
    assert sorted(path.suffix for path in saved.iterdir()) == [".bin", ".json"]


def test_a_whole_pair_is_not_written_again(saved, origin):
    before = {path: path.stat().st_mtime_ns for path in saved.iterdir()}
    assert artifacts.save(saved, origin, compile_s=2.0) is None
    assert {path: path.stat().st_mtime_ns for path in saved.iterdir()} == before


def test_a_process_that_compiled_nothing_saves_nothing(tmp_path, origin):
    CacheArtifactManager.clear()
    assert artifacts.save(tmp_path / "artifacts", origin, compile_s=0.0) is None
    assert not (tmp_path / "artifacts").exists()


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        (".bin", lambda data: data[:-1]),
        (".bin", lambda data: bytes([data[0] ^ 1]) + data[1:]),
        (".bin", lambda data: b""),
        (".json", lambda data: data[:-9]),
        (".json", lambda data: b"[]"),
        (".json", lambda data: b"{}"),
        (".json", lambda data: data.replace(b'"backend": "inductor"', b'"backend": "other"')),
    ],
    ids=["cut", "a bit", "emptied", "half", "a list", "nothing told", "another origin"],
)
def test_what_is_damaged_is_told_in_a_line_and_left_out(tmp_path, saved, origin, suffix, damage):
    path = saved / f"{origin.fingerprint}{suffix}"
    path.write_bytes(damage(path.read_bytes()))
    loaded = artifacts.load(saved, origin)
    assert loaded.entries == 0
    assert loaded.line.startswith(f"compile cache: {path}: ")
    assert loaded.line.endswith("; compiling anew")
    assert "\n" not in loaded.line
    assert cached_graphs(tmp_path) == []
    assert artifacts.save(saved, origin, compile_s=1.0) is not None
    assert artifacts.load(saved, origin).entries == 1


@pytest.mark.parametrize("missing", [".bin", ".json"])
def test_half_a_pair_is_none(tmp_path, saved, origin, missing):
    (saved / f"{origin.fingerprint}{missing}").unlink()
    assert artifacts.load(saved, origin).entries == 0
    assert cached_graphs(tmp_path) == []


def test_bytes_that_torch_cannot_read_are_told_though_their_sum_is_right(tmp_path, saved, origin):
    described = saved / f"{origin.fingerprint}.json"
    value = json.loads(described.read_bytes())
    value["bin"] = {"sha256": hashlib.sha256(b"not a cache").hexdigest(), "bytes": 11}
    described.write_text(json.dumps(value))
    (saved / f"{origin.fingerprint}.bin").write_bytes(b"not a cache")
    assert "torch cannot read it" in artifacts.load(saved, origin).line
    assert cached_graphs(tmp_path) == []


def test_an_entry_that_torch_cannot_unpickle_is_told(tmp_path, origin):
    CacheArtifactManager.record_artifact("inductor", "fexample", CONTENT)
    artifacts.save(tmp_path / "artifacts", origin, compile_s=1.0)
    with torch._inductor.config.patch(bundle_triton_into_fx_graph_cache=True):
        loaded = artifacts.load(tmp_path / "artifacts", origin)
    assert loaded.line.endswith("; compiling anew") or loaded.entries == 2


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Origin)])
def test_another_origin_is_not_loaded(tmp_path, saved, origin, field):
    other: object = {"rows": [2]} if field == "shapes" else "another"
    foreign = dataclasses.replace(origin, **{field: other})
    loaded = artifacts.load(saved, foreign)
    assert loaded.entries == 0
    assert "nothing saved for this torch, GPU and shape (1 for others)" in loaded.line
    assert cached_graphs(tmp_path) == []


def test_the_code_s_sum_changes_with_each_file_and_with_nothing_else(tmp_path):
    names = ("a.py", "b.py")
    for name in names:
        (tmp_path / name).write_text(name)
    before = artifacts.code_sha256(tmp_path, names)
    (tmp_path / "c.py").write_text("")
    assert artifacts.code_sha256(tmp_path, names) == before
    (tmp_path / "b.py").write_text("changed")
    assert artifacts.code_sha256(tmp_path, names) != before


def test_every_source_that_is_compiled_is_there():
    directory = Path(artifacts.__file__).parent.parent
    assert [name for name in artifacts.COMPILED_SOURCES if not (directory / name).exists()] == []
