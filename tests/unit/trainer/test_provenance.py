"""Where code, packages and caches come from, without torch."""

import os
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from trainer import provenance


def package(folder: Path) -> Path:
    made = folder / "trainer"
    (made / "sub").mkdir(parents=True)
    (made / "a.py").write_text("a = 1\n")
    (made / "sub" / "b.py").write_text("b = 1\n")
    return made


def test_the_code_hash_changes_with_a_file_its_name_and_nothing_else(tmp_path):
    made = package(tmp_path)
    first = provenance.code(made)
    (made / "notes.txt").write_text("no code")
    os.utime(made / "a.py", (0, 0))
    assert provenance.code(made) == first
    assert sorted(first["files"]) == ["a.py", "sub/b.py"]
    (made / "sub" / "b.py").write_text("b = 2\n")
    second = provenance.code(made)
    assert second["sha256"] != first["sha256"]
    assert second["files"]["a.py"] == first["files"]["a.py"]
    (made / "a.py").rename(made / "c.py")
    assert provenance.code(made)["sha256"] != second["sha256"]


def test_a_checkout_tells_its_commit_and_whether_the_code_was_changed(tmp_path):
    made = package(tmp_path)
    assert provenance.code(made)["git"] is None
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "x"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    told = provenance.code(made)["git"]
    assert (len(told["commit"]), told["dirty"]) == (40, False)
    (made / "a.py").write_text("a = 2\n")
    assert provenance.code(made)["git"] == {"commit": told["commit"], "dirty": True}


def test_a_cache_is_told_as_there_or_gone(tmp_path):
    for nothing in (None, tmp_path / "nosuch", tmp_path):
        told = provenance.folder_summary(nothing)
        assert told == {"present": False, "files": 0, "bytes": 0, "sha256": None, "artifacts": []}
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts" / "ab.bin").write_bytes(b"12345")
    (tmp_path / "artifacts" / "ab.json").write_bytes(b"{}")
    (tmp_path / "artifacts" / ".cd.json.tmp").write_bytes(b"half")
    told = provenance.folder_summary(tmp_path)
    assert (told["present"], told["files"], told["bytes"], told["artifacts"]) == (True, 2, 7, ["ab"])
    (tmp_path / "artifacts" / "ab.bin").write_bytes(b"123456")
    assert provenance.folder_summary(tmp_path)["sha256"] != told["sha256"]


def test_versions_and_wheels_are_those_installed_and_null_for_those_that_are_not(monkeypatch):
    monkeypatch.setattr(provenance, "PACKAGES", ("numpy", "no-such-package"))
    monkeypatch.setattr(provenance, "BUILT", ("numpy", "no-such-package"))
    told = provenance.versions()
    assert told["numpy"] == metadata.version("numpy")
    assert told["no-such-package"] is None
    wheels = provenance.wheel_hashes()
    assert len(wheels["numpy"] or "") == 64
    assert wheels["no-such-package"] is None


OPEN_MODULE = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (root@x)  Sun\n"
)
CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 2024\nGCC version:  12\n"
)


@pytest.mark.parametrize(("text", "version"), [(OPEN_MODULE, "580.65.06"), (CLOSED, "535.183.01")])
def test_the_drivers_version_is_read_from_the_kernel(tmp_path, monkeypatch, text, version):
    (tmp_path / "version").write_text(text)
    monkeypatch.setattr(provenance, "DRIVER_FILE", tmp_path / "version")
    assert provenance.driver_version() == version


def test_nvidia_smi_is_asked_where_the_kernel_does_not_say(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "DRIVER_FILE", tmp_path / "nosuch")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.driver_version() is None
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 570.1\necho 570.1\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert provenance.driver_version() == "570.1"
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho cannot talk to the driver\nexit 9\n")
    assert provenance.driver_version() is None
