"""The kernels that torch's cache leaves out, as a file that travels beside it.

They are those of FlashAttention 4, our own Triton ones, and the C that Triton compiles to launch them. The
.bin of the pair (`trainer.compiling.pairs` has the files) is a tar of plain files

    flash/<sum of FlashAttention's sources>/<kind>/<sha256 of a kernel's key>.o
    triton/<key>/<file>

and `origin` is that of torch's pair with {"kernels": {"packages": {name: version|null}, "sources": sha256 of
our files, "switches": sha256 of the variables that change a kernel, "libc", "cpu": sha256 of its features}}:
an .o holds code for this CPU beside the GPU's. Keys hold no path; Triton's groups do, which are written anew
for where they are restored. A place that the user set for a cache is his: nothing of it is saved or restored.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import platform
import re
import tarfile
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from trainer.compiling import pairs
from trainer.compiling.artifacts import code_sha256
from trainer.compiling.caches import FLASH, TRITON

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trainer.compiling.artifacts import Origin
    from trainer.compiling.caches import CacheDirs

MAX_BYTES = 64 << 20
PACKAGES = (
    "flash-attn-4",
    "nvidia-cutlass-dsl",
    "nvidia-cutlass-dsl-libs-base",
    "nvidia-cutlass-dsl-libs-cu12",
    "nvidia-cutlass-dsl-libs-cu13",
    "quack-kernels",
    "apache-tvm-ffi",
)
SOURCES = (
    "flash.py",
    "flash_kernels.py",
    "softmax.py",
    "softmax_kernels.py",
    "tiling.py",
    "tiling_kernels.py",
)
OWN = ("row_terms", "logit_gradient", "tile_lists", "key_intervals")
"""Our kernels in Triton's cache; it holds inductor's too, which are in torch's pair."""
_SWITCHES = re.compile(r"(CUTE_DSL|FLASH_ATTENTION)_")
_GROUP = "__grp__"
_FLASH_NAME = re.compile(r"flash/[0-9a-f]{64}/[0-9a-z_]+/[0-9a-f]{64}\.o\Z")
_TRITON_NAME = re.compile(r"triton/[0-9A-Z]+/[0-9A-Za-z_][0-9A-Za-z_.-]*\Z")


def describe(origin: Origin, environ: Mapping[str, str]) -> dict[str, object]:
    """The origin of this process's kernels."""
    switches = sorted(
        item for item in environ.items() if _SWITCHES.match(item[0]) and "_CACHE_" not in item[0]
    )
    return {
        **dataclasses.asdict(origin),
        "kernels": {
            "packages": {name: _version(name) for name in PACKAGES},
            "sources": code_sha256(Path(__file__).parent.parent, SOURCES),
            "switches": hashlib.sha256(json.dumps(switches).encode()).hexdigest(),
            "libc": " ".join(platform.libc_ver()),
            "cpu": _cpu_features(),
        },
    }


def save(dirs: CacheDirs, origin: Origin, environ: Mapping[str, str], *, compile_s: float) -> str | None:
    """Write the kernels in this node's caches, unless a whole pair has them all.

    Returns:
        The line that tells it, or None if there are none or none is new.

    Raises:
        OSError: the disk is full or the place cannot be written.
    """
    described = describe(origin, environ)
    files = dict(_found(dirs, environ))
    try:
        known = _unpack(pairs.read(dirs.artifacts, pairs.fingerprint(described)))
    except pairs.NotWholeError:
        known = {}
    if not files.keys() - known.keys():
        return None
    total = sum(len(data) for data in files.values())
    if total > MAX_BYTES:
        return f"compile cache: {total:,} bytes of kernels are not saved, {MAX_BYTES:,} would be"
    entries = {kind: sum(name.startswith(f"{kind}/") for name in files) for kind in ("flash", "triton")}
    return pairs.write(dirs.artifacts, described, _pack(files), entries, compile_s=compile_s)


def load(dirs: CacheDirs, origin: Origin, environ: Mapping[str, str]) -> str | None:
    """Put saved kernels into this node's caches, beside what is there. Never an error.

    Returns:
        The line that tells it, or None if none are saved.
    """
    name = pairs.fingerprint(describe(origin, environ))
    binary, described = pairs.paths(dirs.artifacts, name)
    if not described.exists():
        return None
    try:
        files = _unpack(pairs.read(dirs.artifacts, name))
        _restore(files, {kind: path for kind, path in _places(dirs).items() if _is_ours(kind, path, environ)})
    except (pairs.NotWholeError, OSError) as problem:
        return f"compile cache: {problem}; kernels are compiled anew"
    return f"compile cache: loaded {len(files)} files of kernels of {binary}"


def _places(dirs: CacheDirs) -> dict[str, Path]:
    return {"flash": dirs.flash, "triton": dirs.triton}


def _is_ours(kind: str, place: Path, environ: Mapping[str, str]) -> bool:
    return environ.get({"flash": FLASH, "triton": TRITON}[kind]) == str(place)


def _found(dirs: CacheDirs, environ: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """The kernels there are: name in the tar, and bytes."""
    if _is_ours("flash", dirs.flash, environ):
        for path in sorted(dirs.flash.glob("*/*/*.o")):
            name = f"flash/{path.relative_to(dirs.flash).as_posix()}"
            if _FLASH_NAME.match(name):
                yield name, path.read_bytes()
    if _is_ours("triton", dirs.triton, environ):
        for folder in sorted(path for path in dirs.triton.glob("*") if path.is_dir()):
            names = sorted(path.name for path in folder.iterdir() if path.is_file())
            if any(f"{_GROUP}{own}.json" in names for own in OWN) or all(".so" in name for name in names):
                for name in names:
                    if _TRITON_NAME.match(f"triton/{folder.name}/{name}"):
                        yield f"triton/{folder.name}/{name}", (folder / name).read_bytes()


def _pack(files: Mapping[str, bytes]) -> bytes:
    """A tar of them; the same bytes for the same files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _unpack(data: bytes) -> dict[str, bytes]:
    """The files of a tar.

    Raises:
        NotWholeError: it is none, it is too large, or it holds anything else than such files.
    """
    if len(data) > 2 * MAX_BYTES:
        raise pairs.NotWholeError(f"a tar of {len(data):,} bytes, which no kernels take")
    files = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for info in tar:
                name = info.name
                if (
                    not info.isreg()
                    or info.issparse()
                    or not (_FLASH_NAME.match(name) or _TRITON_NAME.match(name))
                ):
                    raise pairs.NotWholeError(f"the tar of kernels holds {name!r}, which is none")
                member = tar.extractfile(info)
                assert member is not None  # a regular file has bytes
                files[name] = member.read()
                if len(files[name]) != info.size:
                    raise pairs.NotWholeError(f"the tar of kernels ends within {name!r}")
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise pairs.NotWholeError(f"the tar of kernels cannot be read: {error}") from error
    return files


def _restore(files: Mapping[str, bytes], places: Mapping[str, Path]) -> None:
    """Each file appears whole, by a rename; what is there stays."""
    folders: dict[PurePosixPath, dict[str, bytes]] = {}
    for name, data in files.items():
        path = PurePosixPath(name)
        folders.setdefault(path.parent, {})[path.name] = data
    for folder, members in folders.items():
        kind, *parts = folder.parts
        if kind not in places:
            continue
        place = places[kind].joinpath(*parts)
        if kind == "triton":
            members = {name: _placed(name, data, place) for name, data in members.items()}
        _put(place, {name: data for name, data in members.items() if not (place / name).exists()})


def _put(place: Path, members: Mapping[str, bytes]) -> None:
    place.mkdir(parents=True, exist_ok=True)
    # A group's file last: it is what says that the others are there.
    for name in sorted(members, key=lambda name: (name.startswith(_GROUP), name)):
        temporary = place / f".{name}.{os.getpid()}.tmp"
        temporary.write_bytes(members[name])
        temporary.replace(place / name)


def _placed(name: str, data: bytes, place: Path) -> bytes:
    """A group's file with the paths of its members as they are here."""
    if not name.startswith(_GROUP):
        return data
    try:
        members = json.loads(data)["child_paths"]
        return json.dumps({"child_paths": {member: str(place / member) for member in members}}).encode()
    except (ValueError, KeyError, TypeError) as error:
        raise pairs.NotWholeError(f"the tar of kernels: {name} is no group of Triton's") from error


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cpu_features() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    told = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    features = sorted(told[1].split()) if told else [platform.processor()]
    return hashlib.sha256(" ".join(features).encode()).hexdigest()
