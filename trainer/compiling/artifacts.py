"""Torch's compile cache as a file that travels: saved after warm-up, loaded before the next one.

The .bin of the pair (`trainer.compiling.pairs` has the files) is the bytes of
`torch.compiler.save_cache_artifacts()`, and `origin` is all that the code depends on:

    {"torch", "torch_git", "triton": str|null, "cuda": str|null, "python": "3.12", "machine": "x86_64",
     "device": GPU name or CPU instruction set, "capability": "9.0"|null, "backend", "code_sha256",
     "shapes": {...}: the layer's dimensions and the buckets}
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
import platform
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from trainer.compiling import pairs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# What unpickling raises, by its documentation and by trial.
UNREADABLE = (
    OSError,
    RuntimeError,
    pickle.UnpicklingError,
    AssertionError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    TypeError,
    ValueError,
)
COMPILED_SOURCES = ("attention.py", "flash.py", "layers.py", "masks.py", "model.py")


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """All that compiled code depends on; the names are those of the file."""

    torch: str
    torch_git: str | None
    triton: str | None
    cuda: str | None
    python: str
    machine: str
    device: str
    capability: str | None
    backend: str
    code_sha256: str
    shapes: Mapping[str, object]

    @property
    def fingerprint(self) -> str:
        """64 hex digits; equal only for equal origins."""
        return pairs.fingerprint(dataclasses.asdict(self))


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """What became of the saved artifacts, and the line that tells it."""

    entries: int
    line: str


def describe(device: torch.device, backend: str, shapes: Mapping[str, object]) -> Origin:
    """The origin of what this process compiles; `shapes` is anything that JSON can hold."""
    on_gpu = device.type == "cuda"
    return Origin(
        torch=torch.__version__,
        torch_git=torch.version.git_version,
        triton=_triton_version(),
        cuda=torch.version.cuda,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        machine=platform.machine(),
        device=torch.cuda.get_device_name(device) if on_gpu else torch.backends.cpu.get_cpu_capability(),
        capability="{}.{}".format(*torch.cuda.get_device_capability(device)) if on_gpu else None,
        backend=backend,
        code_sha256=code_sha256(Path(__file__).parent.parent, COMPILED_SOURCES),
        shapes=json.loads(json.dumps(shapes)),  # as it will be read back: tuples are lists there
    )


def code_sha256(directory: Path, names: Sequence[str]) -> str:
    """Sha256 over those files, which hold every line that is compiled; a missing one counts as empty."""
    digest = hashlib.sha256()
    for name in names:
        path = directory / name
        data = path.read_bytes() if path.exists() else b""
        digest.update(f"{name} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def save(directory: Path, origin: Origin, *, compile_s: float) -> str | None:
    """Write what this process compiled or found in the cache, unless a whole pair is there already.

    Returns:
        The line that tells it, or None if there is nothing to save or nothing new.
    """
    if pairs.is_whole(directory, origin.fingerprint):
        return None
    saved = torch.compiler.save_cache_artifacts()
    if saved is None:
        return None
    data, info = saved
    entries = {kind: len(keys) for kind, keys in info.artifacts.items()}
    return pairs.write(directory, dataclasses.asdict(origin), data, entries, compile_s=compile_s)


def load(directory: Path, origin: Origin) -> Loaded:
    """Put saved artifacts into the caches, if there is a whole pair of this origin. Never an error."""
    binary, _ = pairs.paths(directory, origin.fingerprint)
    try:
        info = torch.compiler.load_cache_artifacts(pairs.read(directory, origin.fingerprint))
    except pairs.NotWholeError as problem:
        return Loaded(entries=0, line=f"compile cache: {problem}; compiling anew")
    except UNREADABLE as error:
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Loaded(entries=0, line=f"compile cache: {binary}: not loaded, {what}; compiling anew")
    if info is None:
        return Loaded(entries=0, line=f"compile cache: {binary}: torch cannot read it; compiling anew")
    entries = sum(len(keys) for keys in info.artifacts.values())
    return Loaded(entries=entries, line=f"compile cache: loaded {entries} entries of {binary}")


def _triton_version() -> str | None:
    for name in ("triton", "pytorch-triton"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None
