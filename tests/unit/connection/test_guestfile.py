"""What travels: equal sources, equal bytes; all that is needed and nothing else."""

import gzip
import hashlib
import io
import os
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.connection import guestfile
from orchestrator.connection.guestfile import build_guest, trainer_archive


def test_the_guest_has_our_code_libtmux_and_pynvml_and_no_tests():
    guest = build_guest()
    names = zipfile.ZipFile(io.BytesIO(guest.data)).namelist()
    for name in (
        "__main__.py",
        "orchestrator/guest/__main__.py",
        "orchestrator/wire.py",
        "libtmux/server.py",
        "pynvml.py",
    ):
        assert name in names
    assert names == sorted(names)
    assert all(name.endswith(".py") for name in names)
    assert not [name for name in names if "/test" in name or "pytest" in name or "connection" in name]
    assert guest.sha256 == hashlib.sha256(guest.data).hexdigest()
    assert len(guest.data) < 600_000


def test_the_guest_is_the_same_every_time():
    first = build_guest()
    build_guest.cache_clear()
    assert build_guest() == first


def test_the_guests_main_parses_on_any_python():
    main = zipfile.ZipFile(io.BytesIO(build_guest().data)).read("__main__.py").decode()
    assert not [word for word in ("->", ": str", 'f"', "match ", ":=", "print(") if word in main]


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    root = tmp_path / "trainer"
    for name, data in {
        "__init__.py": b"",
        "configs/tiny.toml": b"a = 1\n",
        "assets/target.safetensors": os.urandom(100_000),
        "tests/test_x.py": b"",
        "__pycache__/x.pyc": b"",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    monkeypatch.setattr(guestfile, "_package", lambda name: root)
    trainer_archive.cache_clear()
    yield root
    trainer_archive.cache_clear()


def test_the_trainer_travels_without_caches_and_tests(trainer: Path):
    archive = trainer_archive()
    with tarfile.open(fileobj=io.BytesIO(archive.data)) as tar:
        assert tar.getnames() == [
            "trainer/__init__.py",
            "trainer/assets/target.safetensors",
            "trainer/configs/tiny.toml",
        ]
        member = tar.extractfile("trainer/assets/target.safetensors")
        assert member is not None
        assert member.read() == (trainer / "assets/target.safetensors").read_bytes()
    assert archive.size == len(archive.data)


def test_the_trainers_archive_does_not_depend_on_times_owners_or_modes(trainer: Path):
    first = trainer_archive()
    for path in trainer.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700)
    trainer_archive.cache_clear()
    assert trainer_archive() == first
    assert gzip.decompress(first.data)[:19] == b"trainer/__init__.py"


def test_a_changed_trainer_has_another_name(trainer: Path):
    first = trainer_archive()
    (trainer / "__init__.py").write_text("x = 1\n")
    trainer_archive.cache_clear()
    assert trainer_archive().sha256 != first.sha256
