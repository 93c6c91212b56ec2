"""Where code and packages come from: versions, the wheels behind them, hashes, the driver. No torch here."""

from __future__ import annotations

import hashlib
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

PACKAGES = ("numpy", "safetensors", "transformers", "tokenizers", "triton", "huggingface-hub", "tomli")
# Those whose version does not say which build it is: a nightly, a patched wheel, another index.
BUILT = ("torch", "triton", "pytorch-triton", "transformers")
# CUDA's own libraries come as wheels of their own, and two of one torch may differ.
CUDA_PREFIX = "nvidia-"
COMMAND_TIMEOUT_S = 10.0
DRIVER_FILE = Path("/proc/driver/nvidia/version")


def versions() -> dict[str, str | None]:
    """Versions of the packages that training depends on, and of CUDA's wheels; null: not installed."""
    found: dict[str, str | None] = {name: _version(name) for name in PACKAGES}
    for each in metadata.distributions():
        name = (each.metadata["Name"] or "").lower()
        if name.startswith(CUDA_PREFIX):
            found[name] = each.version
    return dict(sorted(found.items()))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def wheel_hashes() -> dict[str, str | None]:
    """Sha256 of each distribution's RECORD, which names every installed file with its own sha256."""
    return {name: _record_hash(name) for name in BUILT}


def _record_hash(name: str) -> str | None:
    try:
        record = metadata.distribution(name).read_text("RECORD")
    except metadata.PackageNotFoundError:
        return None
    if record is None:
        return None
    # pip appends lines of its own (compiled files, INSTALLER) in an order of its own.
    lines = sorted(line for line in record.splitlines() if "__pycache__" not in line and ",sha256=" in line)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def code(package: Path) -> dict[str, Any]:
    """The sha256 of a package's Python files, each by itself too, and its git commit if it is a checkout."""
    files = {
        path.relative_to(package).as_posix(): path.read_bytes() for path in sorted(package.rglob("*.py"))
    }
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return {
        "sha256": _hash_of(f"{name} {value}" for name, value in hashes.items()),
        "files": {name: value[:16] for name, value in hashes.items()},
        "git": _git_commit(package),
    }


def _git_commit(package: Path) -> dict[str, Any] | None:
    # Only a checkout of its own: installed below somebody's repository, that commit would say nothing.
    if not (package.parent / ".git").exists():
        return None
    commit = _output(["git", "-C", str(package.parent), "rev-parse", "HEAD"])
    changed = _output(["git", "-C", str(package.parent), "status", "--porcelain", "--", str(package)])
    return None if commit is None else {"commit": commit, "dirty": bool(changed)}


def folder_summary(folder: Path | None) -> dict[str, Any]:
    """What lies in a folder: whether anything does, how much, and a sha256 over names and sizes."""
    found = _sizes(folder) if folder is not None and folder.is_dir() else {}
    return {
        "present": bool(found),
        "files": len(found),
        "bytes": sum(found.values()),
        "sha256": _hash_of(f"{name} {size}" for name, size in found.items()) if found else None,
        "artifacts": sorted(
            Path(name).stem for name in found if name.startswith("artifacts/") and name.endswith(".json")
        ),
    }


def _sizes(folder: Path) -> dict[str, int]:
    found = {}
    for path in sorted(folder.rglob("*")):
        try:
            if path.is_file() and not path.name.startswith("."):
                found[path.relative_to(folder).as_posix()] = path.stat().st_size
        except OSError:  # another process of the node cleans up meanwhile
            continue
    return found


def driver_version() -> str | None:
    """The NVIDIA kernel driver's version; null where there is none."""
    try:
        text = DRIVER_FILE.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    match = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)", text)
    if match is not None:
        return match[1]
    told = _output(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    return told.splitlines()[0].strip() if told else None


def _output(argv: list[str]) -> str | None:
    """What a command prints, or None if it is not there, fails, or takes too long."""
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _hash_of(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
