"""`pull`: files of a run's directory, by offset, each with its sha256; never the run's `env`."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import wire
from orchestrator.guest import asked, inside, paths
from orchestrator.guest.masked import masked_piece
from orchestrator.guest.masks import RunMasks
from orchestrator.guest.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.guest.link import Link

    Read = Callable[[int, int, int], bytes]

WANTS = ("names", "hashes", "data")
MAX_FILES = 10_000
WORDS = "attempts"  # logs and what else a run says of itself: secrets are masked in it
# Hashing says nothing for long on a slow disk; the near side must see that it goes on.
TELL_EVERY_BYTES = 128 << 20


def run(verb: str, request: wire.Message, link: Link) -> None:
    """Answer per file `file`, `data` or `hashed` lines and `file_end`, then `end`; see DESIGN.md."""
    del verb
    place = paths.run_dir(request)
    relative = inside.checked(request.get("path"))
    want, suffix, offsets = _asked(request)
    base = inside.real(place)
    found = [name for name in _walk(base, relative) if name.endswith(suffix)]
    if len(found) > MAX_FILES:
        raise Refusal("bad_request", f"{relative}: {len(found)} files; at most {MAX_FILES} travel at once")
    read = _masked_read(RunMasks(place)) if relative.split("/")[0] == WORDS else _plain_read
    for name in found:
        _send(link, base, name, want, asked.integer(offsets, name, 0), read)
    link.send("end", {"run": place.name, "files": len(found)})


def _plain_read(fd: int, size: int, at: int) -> bytes:
    return os.pread(fd, size, at)


def _masked_read(masks: RunMasks) -> Read:
    """Read what a run says of itself; its sizes and offsets stay, its hash is of what is sent."""
    masker = masks.current()

    def read(fd: int, size: int, at: int) -> bytes:
        return masked_piece(lambda begin, limit: os.pread(fd, limit, begin), at, size, masker)[0]

    return read


def _asked(request: wire.Message) -> tuple[str, str, dict[str, Any]]:
    want, suffix, offsets = (
        request.get("want") or "data",
        request.get("suffix") or "",
        request.get("offsets") or {},
    )
    if want not in WANTS:
        raise Refusal("bad_request", f"want: {want!r} must be one of {', '.join(WANTS)}")
    if not isinstance(suffix, str) or not isinstance(offsets, dict):
        raise Refusal("bad_request", "suffix must be a text, offsets must map paths to numbers")
    return want, suffix, offsets


def _walk(base: Path, relative: str) -> list[str]:
    """The plain files at or below `relative`, by name; hidden ones are half written and left out."""
    top = inside.resolved(base, relative)
    if top.is_file():
        return [relative]
    if not top.is_dir():
        raise Refusal("not_found", f"{top}: there is no such file or folder")
    found: list[str] = []
    for parent, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in (*folders, *sorted(names)):
            path = Path(parent, name)
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise Refusal("bad_request", f"{path}: a link or no plain file; only plain files travel")
        found += [str(Path(parent, n).relative_to(base)) for n in names if not n.startswith(".")]
    return sorted(found)


def _send(link: Link, base: Path, name: str, want: str, offset: int, read: Read) -> None:
    fd = os.open(base / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        link.send("file", {"path": name, "size": size})
        if want == "names":
            return
        sha256 = _stream(link, fd, name, size, want, offset, read)
        link.send("file_end", {"path": name, "size": size, "sha256": sha256})
    finally:
        os.close(fd)


def _stream(link: Link, fd: int, name: str, size: int, want: str, offset: int, read: Read) -> str:
    """Send the bytes from `offset` on, and return the sha256 of the whole file."""
    digest = hashlib.sha256()
    at = told = 0
    while at < size:
        # A piece never reaches across the offset: what is before it is hashed and not sent.
        end = offset if at < offset < size else size
        piece = read(fd, min(wire.MAX_CHUNK_BYTES, end - at), at)
        if not piece:
            raise Refusal("checksum", f"{name}: it became shorter while it was read", "ask again")
        digest.update(piece)
        if want == "data" and at >= offset:
            link.send("data", {"path": name, "offset": at, "data": wire.pack_bytes(piece)})
        elif at + len(piece) - told >= TELL_EVERY_BYTES:
            told = at + len(piece)
            link.send("hashed", {"path": name, "bytes": told})
        at += len(piece)
    if os.fstat(fd).st_size != size:
        raise Refusal("checksum", f"{name}: it grew while it was read", "ask again")
    return digest.hexdigest()
