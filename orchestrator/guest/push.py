"""`push`: one file from stdin into a run's compile cache; whole, checked, or not there."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.guest import asked, files, inside, paths
from orchestrator.guest.receive import PIECE_BYTES, drain, receive
from orchestrator.guest.refusal import Refusal

if TYPE_CHECKING:
    from orchestrator import wire
    from orchestrator.guest.link import Lines, Link

MAX_BYTES = 64 << 30
SPACE_BYTES = 64 << 20
# Nothing else may be written by a request: what lies there is the trainer's to load or to leave.
FOLDER = "compile-cache/"


def run(verb: str, request: wire.Message, link: Link) -> None:
    """Answer `pushed`; with `check`, only say whether the very file is there. The run may be one to come."""
    del verb
    place = paths.run_dir(request, must_exist=False)
    relative, sha256 = inside.checked(request.get("path")), request.get("sha256")
    if not relative.startswith(FOLDER) or Path(relative).name.startswith("."):
        raise Refusal("bad_request", f"path: {relative!r} must be a file below {FOLDER}")
    if not isinstance(sha256, str) or not paths.SHA256.fullmatch(sha256):
        raise Refusal("bad_request", f"sha256: {sha256!r} must be 64 hexadecimal digits")
    size = asked.integer(request, "size", 0)
    if size > MAX_BYTES:
        raise Refusal("bad_request", f"size: {size} is over {MAX_BYTES} bytes")
    final = inside.resolved(inside.real(place), relative)
    is_there = final.is_file() and _sha256(final) == sha256
    if not request.get("check"):
        if is_there:
            drain(link.lines, size)
        else:
            _put(final, link.lines, size, sha256)
    link.send("pushed", {"path": relative, "already": is_there})


def _put(final: Path, lines: Lines, size: int, sha256: str) -> None:
    free = paths.free_bytes(final)
    if free is not None and free < size + SPACE_BYTES:
        message = f"{final.parent}: {free} bytes are free, {size + SPACE_BYTES} are needed"
        raise Refusal("no_space", message, "free space in the container", free_bytes=free)
    made = [folder for folder in final.parents if not folder.exists()]
    final.parent.mkdir(parents=True, exist_ok=True)
    temp = final.with_name(f".{final.name}.{os.getpid()}")
    try:
        receive(temp, lines, size, sha256, temp.name)
        temp.replace(final)
    except BaseException:
        temp.unlink(missing_ok=True)
        for folder in made:  # a refused file leaves no empty run behind
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    files.sync_directory(final.parent)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
