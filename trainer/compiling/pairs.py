"""What was compiled, as a pair of files that travels: <fingerprint>.bin and the .json that says what it is.

On disk, beside the caches themselves (see `trainer.compiling.caches`):

    <run dir>/compile-cache/artifacts/
      <fingerprint>.bin    the bytes: of `trainer.compiling.artifacts` or of `trainer.compiling.kernels`
      <fingerprint>.json   what they are; written last, so that a .bin without it is not complete

`<fingerprint>` is the sha256, 64 hex digits, of `origin` as JSON with sorted keys and no spaces, in ASCII:
`json.dumps(origin, sort_keys=True, separators=(",", ":"))`. The .json is

    {"schema": 1, "fingerprint": "<64 hex>", "origin": {...},
     "bin": {"sha256": "<64 hex>", "bytes": n}, "entries": {"inductor": n, "aot_autograd": n, ...},
     "compile_s": seconds that the warm-up took which made it, "at": "<RFC 3339>"}

A pair is whole if its name is the sha256 of its `origin` and the .bin has the size and sha256 told. The
trainer loads the pairs of its own fingerprints, if whole; each kind of GPU has its own. What is damaged or
does not fit is told in one line and left out. Loading one runs code: a pair is to be trusted like code.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from typing import TYPE_CHECKING, Any

from trainer.clock import utc_now
from trainer.files import SCHEMA, sync_directory, write_durably, write_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class NotWholeError(Exception):
    """There is no whole pair of this origin, and why."""


def fingerprint(origin: Mapping[str, object]) -> str:
    """64 hex digits; equal only for equal origins."""
    text = json.dumps(origin, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def paths(directory: Path, name: str) -> tuple[Path, Path]:
    """The .bin and the .json of this fingerprint."""
    return directory / f"{name}.bin", directory / f"{name}.json"


def read(directory: Path, name: str) -> bytes:
    """The bytes of the pair of this fingerprint.

    Raises:
        NotWholeError: it is missing, damaged or of something else.
    """
    binary, described = paths(directory, name)
    if not described.exists():
        others = len(list(directory.glob("*.json")))
        raise NotWholeError(
            f"nothing saved for this torch, GPU and shape ({others} for others) in {directory}"
        )
    try:
        value: dict[str, Any] = json.loads(described.read_bytes())
        told = value["bin"]["sha256"], value["bin"]["bytes"]
        if value["schema"] != SCHEMA or fingerprint(value["origin"]) != name:
            raise NotWholeError(f"{described}: not of this fingerprint")
        data = binary.read_bytes()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotWholeError(f"{described}: damaged, {type(error).__name__}: {error}") from error
    if (hashlib.sha256(data).hexdigest(), len(data)) != told:
        raise NotWholeError(f"{binary}: damaged, {len(data):,} bytes that are not those saved")
    return data


def is_whole(directory: Path, name: str) -> bool:
    """Whether there is a whole pair of this fingerprint."""
    try:
        read(directory, name)
    except NotWholeError:
        return False
    return True


def write(
    directory: Path,
    origin: Mapping[str, object],
    data: bytes,
    entries: Mapping[str, int],
    *,
    compile_s: float,
) -> str:
    """Write a pair in the place of one that may be there, and return the line that tells it.

    Raises:
        OSError: the disk is full or the place cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    name = fingerprint(origin)
    binary, described = paths(directory, name)
    # Nodes share the folder, and may save the same at the same time.
    temporary = binary.with_name(f".{binary.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    write_durably(temporary, data)
    described.unlink(missing_ok=True)
    temporary.replace(binary)
    write_json(
        described,
        {
            "fingerprint": name,
            "origin": origin,
            "bin": {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)},
            "entries": entries,
            "compile_s": compile_s,
            "at": utc_now(),
        },
    )
    sync_directory(directory)
    return f"compile cache: saved {sum(entries.values())} entries, {len(data):,} bytes, in {binary}"
