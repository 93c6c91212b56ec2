"""What travels: the guest as one zipapp, the trainer as one tar. Equal sources give equal bytes."""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib.util
import io
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest time that a zip can hold
SKIPPED = {"__pycache__", "test", "tests"}
MAIN = """\
# Must parse on any Python: orchestrator.guest tells an old one what to do.
import sys

from orchestrator.guest.__main__ import main

sys.exit(main())
"""


@dataclass(frozen=True, kw_only=True)
class GuestFile:
    """The zipapp and the name it goes by."""

    data: bytes
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A tar.gz and the name it goes by. It holds no time and no owner, so equal trees have equal bytes."""

    data: bytes
    sha256: str

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.data)


@functools.cache
def build_guest() -> GuestFile:
    """Return our guest code, libtmux and pynvml as one file that python3 runs.

    Raises:
        ConfigError: libtmux or nvidia-ml-py is not installed.
    """
    ours = _package("orchestrator")
    members = {
        "__main__.py": MAIN.encode(),
        "orchestrator/__init__.py": (ours / "__init__.py").read_bytes(),
        "orchestrator/wire.py": (ours / "wire.py").read_bytes(),
        "pynvml.py": _module("pynvml").read_bytes(),
    }
    for part in ("guest", "masking"):
        for name, path in _sources(ours / part, f"orchestrator/{part}"):
            members[name] = path.read_bytes()
    for name, path in _sources(_package("libtmux"), "libtmux"):
        if path.name != "pytest_plugin.py":
            members[name] = path.read_bytes()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(members):
            info = zipfile.ZipInfo(name, EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, members[name])
    data = buffer.getvalue()
    return GuestFile(data=data, sha256=hashlib.sha256(data).hexdigest())


@functools.cache
def trainer_archive() -> Archive:
    """Return the bundled `trainer` package as a tar.gz; torch is not imported for it.

    Raises:
        ConfigError: The package is not there.
    """
    root = _package("trainer")
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(filename="", fileobj=buffer, mode="wb", compresslevel=1, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, path in _files(root, "trainer"):
            info = tarfile.TarInfo(name)
            info.size = path.stat().st_size
            info.mode = 0o644
            with path.open("rb") as file:
                archive.addfile(info, file)
    data = buffer.getvalue()
    return Archive(data=data, sha256=hashlib.sha256(data).hexdigest())


def trainer_folder() -> Path:
    """Return the folder that holds the bundled `trainer` package.

    Raises:
        ConfigError: The package is not there.
    """
    return _package("trainer").parent


def _files(root: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    """Yield name and path of every file below `root`, in a fixed order, without caches and tests."""
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        if path.is_file() and not SKIPPED & set(relative.parts) and path.suffix not in (".pyc", ".pyo"):
            yield f"{prefix}/{relative.as_posix()}", path


def _sources(root: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    return ((name, path) for name, path in _files(root, prefix) if path.suffix == ".py")


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            f"the package {name} is not installed", hint="pip install --force-reinstall dflashctl"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def _module(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ConfigError(
            f"the module {name} is not installed", hint="pip install --force-reinstall dflashctl"
        )
    return Path(spec.origin)
