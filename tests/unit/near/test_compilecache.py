"""Compile artifacts: what a pair says, what is wrong with it, which one is meant."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.compilecache import Artifact, Store, judge, parse, pick
from orchestrator.errors import NotFound, OrchestratorError

if TYPE_CHECKING:
    from pathlib import Path

BIN = b"code" * 100


def pair(shapes: int = 1, data: bytes = BIN, **changes: Any) -> tuple[str, dict[str, Any]]:
    """A fingerprint and its .json, as the trainer writes them."""
    origin = {"torch": "2.11.0+cu130", "device": "NVIDIA H200", "shapes": {"rows": shapes}}
    name = hashlib.sha256(json.dumps(origin, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    told = {
        "schema": 1,
        "fingerprint": name,
        "origin": origin,
        "bin": {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)},
        "entries": {"inductor": 3},
        "compile_s": 41.5,
        "at": "2026-11-29T19:31:31.000000Z",
    }
    return name, {**told, **changes}


def keep(folder: Path, shapes: int = 1, data: bytes = BIN) -> str:
    name, told = pair(shapes, data)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.bin").write_bytes(data)
    (folder / f"{name}.json").write_text(json.dumps(told))
    return name


def test_a_pair_says_what_it_is_of():
    name, told = pair()
    found = parse(f"{name}.json", json.dumps(told).encode())
    assert (found.fingerprint, found.torch, found.device) == (name, "2.11.0+cu130", "NVIDIA H200")
    assert (found.num_bytes, found.compile_s, found.problem) == (len(BIN), 41.5, None)
    assert found.at is not None
    assert found.at.isoformat() == "2026-11-29T19:31:31+00:00"


@pytest.mark.parametrize(
    "change",
    [
        {"origin": {"torch": "2.13", "device": "x", "shapes": {}}},
        {"origin": None},
        {"origin": {}},
        {"bin": {}},
        {"bin": {"sha256": "00", "bytes": "many"}},
        {"fingerprint": "00" * 32},
        {"at": "yesterday, Z"},
    ],
)
def test_a_pair_whose_words_do_not_fit_has_a_problem_and_is_no_error(change):
    name, told = pair(**change)
    assert parse(f"{name}.json", json.dumps(told).encode()).problem


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"\xff", b"[" * 100_000])
def test_what_is_no_json_object_has_a_problem(data):
    assert "cannot be read" in (parse("00.json", data).problem or "")


def test_a_name_of_another_origin_has_a_problem():
    _, told = pair()
    assert parse(f"{'00' * 32}.json", json.dumps(told).encode()).problem


@pytest.mark.parametrize(
    ("size", "sha256", "problem"),
    [
        (len(BIN), None, None),
        (len(BIN), hashlib.sha256(BIN).hexdigest(), None),
        (None, None, "missing"),
        (3, None, "3 bytes, not 400"),
        (len(BIN), "ab" * 32, "another sha256: abababababab"),
    ],
)
def test_the_bytes_are_judged_by_size_and_sha256(size, sha256, problem):
    name, told = pair()
    found = judge(parse(f"{name}.json", json.dumps(told).encode()), size, sha256).problem
    assert found is None if problem is None else problem in (found or "")


def test_the_store_lists_by_target_and_run_and_finds_damage_only_when_it_hashes(tmp_path):
    store = Store.beside(tmp_path / "record.sqlite3")
    name = keep(store.folder("10.1.2.6:22/200", "b32"))
    assert store.folder("10.1.2.6:22/200", "b32") == tmp_path / "compile-cache" / "10.1.2.6_22_200" / "b32"
    assert store.places() == [("10.1.2.6_22_200", "b32")]
    assert [each.problem for each in store.artifacts("10.1.2.6:22/200", "b32", check=True)] == [None]
    path = store.folder("10.1.2.6:22/200", "b32") / f"{name}.bin"
    path.write_bytes(b"?" + BIN[1:])
    assert [each.problem for each in store.artifacts("10.1.2.6:22/200", "b32")] == [None]
    (found,) = store.artifacts("10.1.2.6:22/200", "b32", check=True)
    assert "another sha256" in (found.problem or "")
    path.with_suffix(".json").unlink()
    (found,) = store.artifacts("10.1.2.6:22/200", "b32")
    assert ".json is missing" in (found.problem or "")


def test_a_place_that_keeps_nothing_has_nothing(tmp_path):
    store = Store(tmp_path / "nothing")
    assert (store.places(), store.artifacts("h", "r")) == ([], [])


WHOLE = Artifact(fingerprint="aa11")
OTHER = Artifact(fingerprint="bb22")
DAMAGED = Artifact(fingerprint="cc33", problem="its .bin is missing")


def test_without_a_prefix_every_whole_one_is_meant():
    assert pick([WHOLE, OTHER, DAMAGED], None, "r") == [WHOLE, OTHER]
    assert pick([WHOLE, OTHER], "bb", "r") == [OTHER]


def test_one_that_is_not_there_or_damaged_is_told():
    with pytest.raises(NotFound, match=r"r: no artifact 'dd'; there are: aa11, bb22"):
        pick([WHOLE, OTHER], "dd", "r")
    with pytest.raises(NotFound, match="r: no compile artifact; the trainer saves one"):
        pick([], None, "r")
    with pytest.raises(OrchestratorError, match=r"r: artifact cc33: its \.bin is missing"):
        pick([WHOLE, DAMAGED], "cc", "r")
