"""The compile cache as a file that travels: saved after warm-up, loaded before the next one.

On disk, beside the caches themselves (see `trainer.compiling.caches`):

    <run dir>/compile-cache/artifacts/
      <fingerprint>.bin    the bytes of torch.compiler.save_cache_artifacts()
      <fingerprint>.json   what they are; written last, so that a .bin without it is not complete

`<fingerprint>` is the sha256, 64 hex digits, of `origin` as JSON with sorted keys and no spaces, in ASCII:
`json.dumps(origin, sort_keys=True, separators=(",", ":"))`. The .json is

    {"schema": 1, "fingerprint": "<64 hex>", "origin": {...},
     "bin": {"sha256": "<64 hex>", "bytes": n}, "entries": {"inductor": n, "aot_autograd": n, ...},
     "compile_s": seconds that the warm-up took which made it, "at": "<RFC 3339>"}

and `origin`, all that the code depends on:

    {"torch", "torch_git", "triton": str|null, "cuda": str|null, "python": "3.12", "machine": "x86_64",
     "device": GPU name or CPU instruction set, "capability": "9.0"|null, "backend", "code_sha256",
     "shapes": {...}: the layer's dimensions and the buckets}

A pair is whole if its name is the sha256 of its `origin` and the .bin has the size and sha256 told. The
trainer loads the one pair of its own fingerprint, if whole; each kind of GPU has its own. What is damaged or
does not fit is told in one line and left out. Loading unpickles: a pair is to be trusted like code.
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
from typing import TYPE_CHECKING, Any

import torch

from trainer.clock import utc_now
from trainer.files import SCHEMA, sync_directory, write_durably, write_json

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
COMPILED_SOURCES = ("attention.py", "layers.py", "masks.py", "model.py")


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
        return _fingerprint(dataclasses.asdict(self))


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
    if _problem(directory, origin.fingerprint) is None:
        return None
    saved = torch.compiler.save_cache_artifacts()
    if saved is None:
        return None
    data, info = saved
    directory.mkdir(parents=True, exist_ok=True)
    binary, described = _pair(directory, origin.fingerprint)
    temporary = binary.with_name(f".{binary.name}.tmp")
    write_durably(temporary, data)
    described.unlink(missing_ok=True)
    temporary.replace(binary)
    entries = {kind: len(keys) for kind, keys in info.artifacts.items()}
    write_json(
        described,
        {
            "fingerprint": origin.fingerprint,
            "origin": dataclasses.asdict(origin),
            "bin": {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)},
            "entries": entries,
            "compile_s": compile_s,
            "at": utc_now(),
        },
    )
    sync_directory(directory)
    return f"compile cache: saved {sum(entries.values())} entries, {len(data):,} bytes, in {binary}"


def load(directory: Path, origin: Origin) -> Loaded:
    """Put saved artifacts into the caches, if there is a whole pair of this origin. Never an error."""
    binary, _ = _pair(directory, origin.fingerprint)
    problem = _problem(directory, origin.fingerprint)
    if problem is not None:
        return Loaded(entries=0, line=f"compile cache: {problem}; compiling anew")
    try:
        info = torch.compiler.load_cache_artifacts(binary.read_bytes())
    except UNREADABLE as error:
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Loaded(entries=0, line=f"compile cache: {binary}: not loaded, {what}; compiling anew")
    if info is None:
        return Loaded(entries=0, line=f"compile cache: {binary}: torch cannot read it; compiling anew")
    entries = sum(len(keys) for keys in info.artifacts.values())
    return Loaded(entries=entries, line=f"compile cache: loaded {entries} entries of {binary}")


def _problem(directory: Path, fingerprint: str) -> str | None:
    """What keeps the pair of this fingerprint from being whole."""
    binary, described = _pair(directory, fingerprint)
    if not described.exists():
        others = len(list(directory.glob("*.json")))
        return f"nothing saved for this torch, GPU and shape ({others} for others) in {directory}"
    try:
        value: dict[str, Any] = json.loads(described.read_bytes())
        told = value["bin"]["sha256"], value["bin"]["bytes"]
        if value["schema"] != SCHEMA or _fingerprint(value["origin"]) != fingerprint:
            return f"{described}: not of this fingerprint"
        data = binary.read_bytes()
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{described}: damaged, {type(error).__name__}: {error}"
    if (hashlib.sha256(data).hexdigest(), len(data)) != told:
        return f"{binary}: damaged, {len(data):,} bytes that are not those saved"
    return None


def _pair(directory: Path, fingerprint: str) -> tuple[Path, Path]:
    return directory / f"{fingerprint}.bin", directory / f"{fingerprint}.json"


def _fingerprint(origin: Mapping[str, object]) -> str:
    text = json.dumps(origin, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _triton_version() -> str | None:
    for name in ("triton", "pytorch-triton"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None
