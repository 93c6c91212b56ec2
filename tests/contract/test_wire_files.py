"""pull and push: the near half against the real guest as it travels, a process of this machine."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from orchestrator.connection import (
    GuestClient,
    LocalShell,
    list_files,
    pull_files,
    push_file,
    read_files,
)
from orchestrator.errors import GuestRefused
from orchestrator.inventory import Target

if TYPE_CHECKING:
    from pathlib import Path

DATA = os.urandom((1 << 20) + 17)
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def client(tmp_path: Path) -> GuestClient:
    return GuestClient(LocalShell(), Target(host=None, ct=None, state_dir=str(tmp_path / "state")))


@pytest.fixture
def export(tmp_path: Path) -> Path:
    folder = tmp_path / "state" / "runs" / "r" / "export"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(DATA)
    (folder / "config.json").write_bytes(b"{}")
    return folder


def test_both_halves_agree_on_names_hashes_and_bytes(client, export, tmp_path):
    assert [(each.path, each.size) for each in list_files(client, "r", "export")] == [
        ("export/config.json", 2),
        ("export/model.safetensors", len(DATA)),
    ]
    hashed = list_files(client, "r", "export", suffix=".safetensors", hashes=True)
    assert [each.sha256 for each in hashed] == [SHA256]
    assert read_files(client, "r", "export", suffix=".json") == {"export/config.json": b"{}"}
    into = tmp_path / "into"
    pull_files(client, "r", "export", into)
    assert (into / "model.safetensors").read_bytes() == DATA
    (into / "model.safetensors").write_bytes(DATA[:70_001])
    pull_files(client, "r", "export", into)
    assert (into / "model.safetensors").read_bytes() == DATA


def test_both_halves_agree_on_a_push(client, tmp_path):
    source = tmp_path / "a.bin"
    source.write_bytes(DATA)
    path = "compile-cache/artifacts/a.bin"
    assert push_file(client, "r", path, source, SHA256) is True
    assert push_file(client, "r", path, source, SHA256) is False
    assert (tmp_path / "state" / "runs" / "r" / path).read_bytes() == DATA
    with pytest.raises(GuestRefused) as caught:
        push_file(client, "r", "export/config.json", source, SHA256)
    assert caught.value.reason == "bad_request"


def test_what_is_not_there_or_nobodys_business_has_its_code(client, export):
    for path, code in (
        ("checkpoints", "not_found"),
        ("env", "bad_request"),
        ("export/../env", "bad_request"),
    ):
        with pytest.raises(GuestRefused) as caught:
            list_files(client, "r", path)
        assert caught.value.reason == code
