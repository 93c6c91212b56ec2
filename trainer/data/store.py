"""Tokens on disk, written once and then memory-mapped.

A store is a directory, whole or absent: it is written under another name, and renamed when complete.
    train/, held-out/     each tokens.bin (uint32), supervised.bin (uint8, one a token) and offsets.bin
                          (int64, one a document and one more), little-endian
    bad-lines.txt         where each unusable document was, and why
    manifest.json         {schema, fingerprint, counts: {...}, parts: {train: {documents, tokens}, ...}}
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from trainer.errors import DataInvalid
from trainer.files import write_json

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

    from numpy.typing import NDArray

    from trainer.data.tokenizers import Encoded

TRAIN, HELD_OUT = "train", "held-out"
PARTS = (TRAIN, HELD_OUT)
MANIFEST = "manifest.json"
_TOKENS, _SUPERVISED, _OFFSETS = "tokens.bin", "supervised.bin", "offsets.bin"


class PartWriter:
    """Appends documents to one part."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        directory.mkdir(parents=True)

        def create(name: str) -> BinaryIO:
            return stack.enter_context((directory / name).open("wb"))

        self._tokens, self._supervised, self._offsets = map(create, (_TOKENS, _SUPERVISED, _OFFSETS))
        self.num_documents = 0
        self.num_tokens = 0
        self._mark()

    def add(self, document: Encoded) -> None:
        """Append one document."""
        self._tokens.write(document.tokens.astype("<u4", copy=False).tobytes())
        self._supervised.write(document.supervised.astype(np.uint8).tobytes())
        self.num_documents += 1
        self.num_tokens += len(document.tokens)
        self._mark()

    def finish(self) -> None:
        """Wait until all is on the disk."""
        for file in (self._tokens, self._supervised, self._offsets):
            file.flush()
            os.fsync(file.fileno())

    def _mark(self) -> None:
        self._offsets.write(self.num_tokens.to_bytes(8, "little"))


class Part:
    """The documents of one part, read where they lie."""

    def __init__(self, directory: Path) -> None:
        self._tokens = _map(directory / _TOKENS, "<u4")
        self._supervised = _map(directory / _SUPERVISED, "u1")
        self._offsets = _map(directory / _OFFSETS, "<i8")

    def __len__(self) -> int:
        """Documents."""
        return len(self._offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens of each document, in order."""
        return np.diff(self._offsets).astype(np.int32)

    @property
    def whole(self) -> bool:
        """Whether the files are as long as the offsets say."""
        end = int(self._offsets[-1]) if len(self._offsets) else -1
        return len(self._tokens) == len(self._supervised) == end

    def read(self, index: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Copies of a document's tokens, and of whether each is supervised."""
        begin, end = int(self._offsets[index]), int(self._offsets[index + 1])
        return self._tokens[begin:end].astype(np.int64), self._supervised[begin:end].astype(np.bool_)


def _map(path: Path, kind: str) -> NDArray[Any]:
    if not path.stat().st_size:  # which mmap refuses
        return np.empty(0, kind)
    return np.memmap(path, kind, "r")


@dataclass(frozen=True, slots=True)
class Store:
    """A complete store."""

    directory: Path
    fingerprint: str
    counts: dict[str, int]
    """What became of the documents: read, bad, short, cut and so on."""

    def part(self, name: str) -> Part:
        """One of `PARTS`.

        Raises:
            DataInvalid: its files are damaged.
        """
        try:
            part = Part(self.directory / name)
        except (OSError, ValueError) as error:
            raise DataInvalid(f"{self.directory / name}: {error}; {_cure(self.directory)}") from error
        if not part.whole:
            raise DataInvalid(f"{self.directory / name}: files of the wrong length; {_cure(self.directory)}")
        return part


def open_store(directory: Path) -> Store | None:
    """The store at `directory`, or none if none was completed there.

    Raises:
        DataInvalid: its manifest cannot be read.
    """
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        return Store(directory, str(manifest["fingerprint"]), dict(manifest["counts"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataInvalid(f"{path}: cannot be read: {error}; {_cure(directory)}") from error


def write_manifest(
    directory: Path, fingerprint: str, counts: dict[str, int], parts: dict[str, PartWriter]
) -> None:
    """Say what is in the directory; a directory without it is no store."""
    sizes = {
        name: {"documents": part.num_documents, "tokens": part.num_tokens} for name, part in parts.items()
    }
    write_json(directory / MANIFEST, {"fingerprint": fingerprint, "counts": counts, "parts": sizes})


def _cure(directory: Path) -> str:
    return f"delete {directory} and run again: it is made anew from data.path"
