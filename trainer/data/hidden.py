"""Hidden states of the target on disk, for training without it.

One safetensors file a micro-batch, each with the sha256 of what is in it among its metadata, so that file and
checksum come and go together. Several ranks write at once, each its own micro-batches.
    KEY/000012/000012345.safetensors     taps [R, T, E] and, if asked for, last [R, T, D]
    KEY/complete.json                    {schema, key, count}: all of them are there
Shapes: R rows, T tokens, D model dim, E = taps * D.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from trainer.errors import ConfigInvalid, DataInvalid
from trainer.files import write_json
from trainer.target.api import Observation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from torch import Tensor

    from trainer.data.buckets import Bucket

COMPLETE = "complete.json"
PER_FOLDER = 1000
HEADER_BYTES = 1024
"""At most, of one file."""
KEEP_FREE = 0.02
"""Share of the disk that is left alone."""
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


def cache_key(
    *, target: str, data: str, tap_layers: Sequence[int], dtype: torch.dtype, last: bool, count: int
) -> str:
    """sha256 over all that hidden states depend on: who made them, of which micro-batches, what is kept."""
    told = json.dumps([target, data, list(tap_layers), str(dtype), last, count])
    return hashlib.sha256(told.encode()).hexdigest()


def expected_bytes(shapes: Iterable[Bucket], *, taps_dim: int, last_dim: int, dtype: torch.dtype) -> int:
    """Bytes on disk of one micro-batch for each of `shapes`; `taps_dim` is E, `last_dim` D, or 0 without."""
    width = (taps_dim + last_dim) * dtype.itemsize
    return sum(HEADER_BYTES + bucket.rows * bucket.context_tokens * width for bucket in shapes)


class HiddenCache:
    """The hidden states of micro-batches 0 to count - 1."""

    def __init__(self, directory: Path, key: str) -> None:
        self.directory = directory / key[:16]
        self._key = key
        self._free_from = directory

    def require_space(self, needed: int) -> str:
        """A line about the size of what is going to be written, `needed` bytes in all.

        One rank asks before any of them writes: what a killed one left half written is removed.

        Raises:
            ConfigInvalid: the disk has not so much room, or the folder cannot be made.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigInvalid(
                f"parallel.cache_dir: {error.filename}: {error.strerror}; name a folder that can be written"
            ) from error
        for left in self.directory.glob("*/.*"):
            left.unlink(missing_ok=True)
        usage = shutil.disk_usage(self._free_from)
        missing = max(0, needed - self.num_bytes())
        room = usage.free - int(usage.total * KEEP_FREE)
        if missing > room:
            raise ConfigInvalid(
                f"parallel.cache_dir: {self._free_from}: hidden states take {_gib(needed)}, of which "
                f"{_gib(missing)} are to be written, and the disk has {_gib(max(0, room))} to spare; name a "
                "larger disk, train on fewer documents, or take parallel.placement = colocated or split"
            )
        return (
            f"hidden states take {_gib(needed)} under {self.directory}, of which {_gib(missing)} are to be "
            f"written; the disk has {_gib(room)} to spare"
        )

    def num_bytes(self) -> int:
        """Bytes of the micro-batches that are there."""
        return sum(path.stat().st_size for path in self.directory.glob("*/*.safetensors"))

    def path(self, index: int) -> Path:
        """The file of micro-batch `index`."""
        return self.directory / f"{index // PER_FOLDER:06d}" / f"{index:09d}.safetensors"

    def missing(self, count: int) -> list[int]:
        """The micro-batches below `count` that are still to be written, in order."""
        return [index for index in range(count) if not self.path(index).exists()]

    def write(self, index: int, observation: Observation) -> None:
        """Keep one micro-batch; other ranks may write others meanwhile.

        Raises:
            OSError: the disk is full.
        """
        tensors = {"taps": observation.taps}
        if observation.last is not None:
            tensors["last"] = observation.last
        kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        path = self.path(index)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            save_file(kept, temporary, {"sha256": self._digest(index, kept)})
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        except SafetensorError as error:  # which is how it tells of a full disk
            number = _OS_ERROR.search(str(error))
            raise OSError(int(number[1]) if number else errno.EIO, str(error), str(path)) from error
        finally:
            temporary.unlink(missing_ok=True)

    def read(self, index: int) -> Observation:
        """One micro-batch, on the CPU.

        Raises:
            DataInvalid: it is not there, or not as it was written.
        """
        path = self.path(index)
        cure = "delete it and run again: the target ranks write it anew"
        try:
            with safe_open(path, framework="pt") as file:
                told = (file.metadata() or {}).get("sha256")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        except (OSError, SafetensorError) as error:
            raise DataInvalid(f"{path}: cannot be read: {error}; {cure}") from error
        if told != (digest := self._digest(index, tensors)):
            raise DataInvalid(f"{path}: its sha256 is {digest}, written as {told}; {cure}")
        return Observation(tensors["taps"], tensors.get("last"))

    def finish(self, count: int) -> None:
        """Say that all `count` micro-batches are there; one rank does so when all have written.

        Raises:
            DataInvalid: they are not.
        """
        if missing := self.missing(count):
            raise DataInvalid(
                f"{self.directory}: {len(missing)} of {count} micro-batches are missing, the first "
                f"{missing[0]}; run again: only those are written"
            )
        write_json(self.directory / COMPLETE, {"key": self._key, "count": count})

    def complete(self, count: int) -> bool:
        """Whether all `count` micro-batches of this key were written, and none was deleted since."""
        try:
            told = json.loads((self.directory / COMPLETE).read_bytes())
        except (FileNotFoundError, ValueError):
            return False
        finished = isinstance(told, dict) and told.get("key") == self._key and told.get("count") == count
        return finished and not self.missing(count)

    def _digest(self, index: int, tensors: dict[str, Tensor]) -> str:
        """sha256 over whose hidden states these are, their types and shapes, and every byte of them."""
        digest = hashlib.sha256(f"{self._key} {index}".encode())
        for name, tensor in sorted(tensors.items()):
            digest.update(f"\0{name} {tensor.dtype} {list(tensor.shape)}\0".encode())
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
