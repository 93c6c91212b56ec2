"""The text that the embedded target and its drafter learn: the Python standard library's sources.

Whole files are held out, by a hash of their path, so that the same files stay unseen on every machine and
Python.
"""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from trainer.errors import DataInvalid

HELD_OUT_ONE_IN = 16
MIN_FILE_BYTES = 1024
SKIPPED = frozenset(
    (
        "__pycache__",
        "dist-packages",
        "encodings",
        "ensurepip",
        "idlelib",
        "lib2to3",
        "pydoc_data",
        "site-packages",
    )
)
"""Folders left out: third-party code, what distributions ship separately, and tables, whose sameness would
flatter."""
TESTS = frozenset({"test", "tests"})


@dataclass(frozen=True, slots=True)
class Source:
    """One file: its path under the library's folder, and its bytes."""

    path: str
    text: bytes


@dataclass(frozen=True, slots=True)
class Corpus:
    """Sources in path order, split by whole files."""

    train: tuple[Source, ...]
    held_out: tuple[Source, ...]
    fingerprint: str
    """sha256 over all paths and bytes."""

    @property
    def train_bytes(self) -> int:
        """Bytes of the training files together."""
        return sum(len(source.text) for source in self.train)


def is_held_out(path: str) -> bool:
    """Whether a file, by its path with forward slashes, is kept from training."""
    return hashlib.sha256(path.encode()).digest()[0] % HELD_OUT_ONE_IN == 0


def stdlib_directory(configured: str) -> Path:
    """The folder meant by `data.stdlib`: itself, or the running Python's library for `auto`."""
    return Path(sysconfig.get_path("stdlib") if configured == "auto" else configured)


def read_corpus(root: Path, *, include_tests: bool = False) -> Corpus:
    """Read every usable source under `root`; files of test folders are never in the held-out part.

    Raises:
        DataInvalid: the folder holds too little to train on.
    """
    train: list[Source] = []
    held_out: list[Source] = []
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        is_test = not TESTS.isdisjoint(relative.parts)
        if not SKIPPED.isdisjoint(relative.parts) or (is_test and not include_tests):
            continue
        text = _read(path)
        if len(text) < MIN_FILE_BYTES:
            continue
        source = Source(relative.as_posix(), text)
        digest.update(source.path.encode() + b"\0" + hashlib.sha256(text).digest())
        (held_out if is_held_out(source.path) and not is_test else train).append(source)
    if not train or not held_out:
        raise DataInvalid(
            f"{root}: {len(train)} training and {len(held_out)} held-out Python files; "
            "install the full standard library, or name a folder of Python sources with data.stdlib"
        )
    return Corpus(tuple(train), tuple(held_out), digest.hexdigest())


def _read(path: Path) -> bytes:
    """The file's bytes with Unix line ends, or nothing if it is not UTF-8 text."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return b""
    return text.encode() if "\0" not in text else b""
