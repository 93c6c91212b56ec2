"""`install`: a trainer's tar.gz from stdin, unpacked under its own hash; complete or absent."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from orchestrator.guest import files, paths
from orchestrator.guest.receive import drain, receive
from orchestrator.guest.refusal import Refusal

if TYPE_CHECKING:
    from orchestrator import wire
    from orchestrator.guest.link import Lines, Link

MAX_BYTES = 256 << 20
# What a source tree unpacks to, and some room.
SPACE_FACTOR = 6
SPACE_BYTES = 16 << 20
COMPLETE = ".complete"


def run(verb: str, request: wire.Message, link: Link) -> None:
    """Answer `installed`; with `check`, only say whether it is there."""
    del verb
    sha256 = request.get("sha256")
    if not isinstance(sha256, str) or not paths.SHA256.fullmatch(sha256):
        raise Refusal("bad_request", f"sha256: {sha256!r} must be 64 hexadecimal digits")
    if request.get("kind", "trainer") != "trainer":
        raise Refusal("bad_request", f'kind: {request.get("kind")!r} must be "trainer"')
    final = paths.resolve_state(request.get("state_dir")) / "trainers" / sha256
    is_there = (final / COMPLETE).exists()
    if not request.get("check"):
        size = request.get("size")
        if not isinstance(size, int) or not 0 < size <= MAX_BYTES:
            raise Refusal("bad_request", f"size: {size!r} must be 1 to {MAX_BYTES} bytes")
        if is_there:
            drain(link.lines, size)
        else:
            _install(final, link.lines, size)
    link.send("installed", {"path": str(final), "already": is_there})


def _install(final: Path, lines: Lines, size: int) -> None:
    needed, free = size * SPACE_FACTOR + SPACE_BYTES, paths.free_bytes(final)
    if free is not None and free < needed:
        raise Refusal("no_space", f"{final.parent}: {free} bytes are free, {needed} are needed", "free space")
    final.parent.mkdir(parents=True, exist_ok=True)
    archive = final.parent / f".{final.name}.{os.getpid()}.tar.gz"
    tree = archive.with_suffix("").with_suffix(".tree")
    try:
        receive(archive, lines, size, final.name, "the archive")
        tree.mkdir()
        _unpack(archive, tree)
        (tree / COMPLETE).touch()
        _put(tree, final)
    finally:
        archive.unlink(missing_ok=True)
        shutil.rmtree(tree, ignore_errors=True)


def _unpack(archive: Path, tree: Path) -> None:
    try:
        with tarfile.open(archive, "r:gz") as tar:
            members = tar.getmembers()
            for member in members:
                _check(member)
            if hasattr(tarfile, "data_filter"):
                tar.extractall(tree, members, filter="data")
            else:  # 3.10 and 3.11 before their security releases; `_check` is as strict
                tar.extractall(tree, members)
    except tarfile.TarError as error:
        raise Refusal("checksum", f"the archive is no tar.gz: {error}") from error


def _check(member: tarfile.TarInfo) -> None:
    """Only plain files and directories inside the tree, with ordinary modes."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or not (member.isreg() or member.isdir()):
        raise Refusal("bad_request", f"the archive's member {member.name!r} is no plain file inside it")
    member.mode = (member.mode & 0o755) | 0o600 | (0o700 if member.isdir() else 0)
    member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""


def _put(tree: Path, final: Path) -> None:
    """Put the whole tree in its place in one step; who came first stays."""
    if final.exists() and not (final / COMPLETE).exists():
        shutil.rmtree(final)
    try:
        tree.rename(final)
    except OSError:
        if not (final / COMPLETE).exists():
            raise
    files.sync_directory(final.parent)
