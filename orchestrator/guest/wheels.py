"""`wheels`: wheels from stdin into the wheelhouse of an environment to come; resumed where they were cut."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.guest import asked, files, paths, venvhold, venvs
from orchestrator.guest.receive import PIECE_BYTES
from orchestrator.guest.refusal import Refusal

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator import wire
    from orchestrator.guest.link import Lines, Link

MAX_FILES = 1000
SPACE_BYTES = 256 << 20
SILENT_S = 120.0  # a connection that broke without a word must not hold the lock for hours
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+!-]{0,199}\.whl")


@dataclass(frozen=True)
class Wheel:
    """One file that is wanted; `offset` is from where on it is sent."""

    name: str
    size: int
    sha256: str
    offset: int


def run(verb: str, request: wire.Message, link: Link) -> None:
    """Answer `wheels`: of each file the bytes that are there; with `check`, nothing is read or written."""
    del verb
    key = request.get("key")
    if not isinstance(key, str) or not venvs.KEY.fullmatch(key):
        raise Refusal("bad_request", f"key: {key!r} must be 16 hexadecimal digits")
    state = paths.resolve_state(request.get("state_dir"))
    house = venvs.wheelhouse(state, key)
    wheels = _wheels(request.get("files"))
    if request.get("check"):
        link.send("wheels", {"have": {each.name: _have(house, each) for each in wheels}})
        return
    needed, free = sum(each.size - each.offset for each in wheels) + SPACE_BYTES, paths.free_bytes(house)
    if free is not None and free < needed:
        message = f"{house}: {free} bytes are free, {needed} are needed for the wheels"
        raise Refusal("no_space", message, "free space in the container", free_bytes=free)
    with venvhold.hold(state, request):  # two that write into one part would spoil it for both
        house.mkdir(parents=True, exist_ok=True)
        for each in wheels:
            _take(house, each, link.lines)
    link.send("wheels", {"have": {each.name: each.size for each in wheels}})


def _wheels(told: object) -> list[Wheel]:
    if not isinstance(told, list) or not 0 < len(told) <= MAX_FILES:
        raise Refusal("bad_request", f"files: must be a list of 1 to {MAX_FILES}")
    return [_wheel(each) for each in told]


def _wheel(told: Any) -> Wheel:  # noqa: ANN401
    name = told.get("name") if isinstance(told, dict) else None
    if not isinstance(name, str) or not _NAME.fullmatch(name) or ".." in name:
        raise Refusal("bad_request", f"files: {name!r} is no wheel's name")
    sha256 = told.get("sha256")
    if not isinstance(sha256, str) or not paths.SHA256.fullmatch(sha256):
        raise Refusal("bad_request", f"files: {name}: sha256 {sha256!r} must be 64 hexadecimal digits")
    size, offset = asked.integer(told, "size", 0), asked.integer(told, "offset", 0)
    if offset > size:
        raise Refusal("bad_request", f"files: {name}: offset {offset} is behind its {size} bytes")
    return Wheel(name, size, sha256, offset)


def _part(house: Path, wheel: Wheel) -> Path:
    # Another content of that name has another part.
    return house / f".{wheel.name}.{wheel.sha256[:16]}.part"


def _have(house: Path, wheel: Wheel) -> int:
    """Return how many of its bytes are there: all of them only if they are the right ones."""
    final = house / wheel.name
    if files.size_of(final) == wheel.size and _sha256(final) == wheel.sha256:
        return wheel.size
    here = files.size_of(_part(house, wheel))
    return here if here < wheel.size else 0


def _take(house: Path, wheel: Wheel, lines: Lines) -> None:
    """Go on where the part ends; a cut leaves the part, wrong bytes leave nothing."""
    part, left = _part(house, wheel), wheel.size - wheel.offset
    if wheel.offset and files.size_of(part) < wheel.offset:
        raise Refusal("moved", f"{part}: it is shorter than {wheel.offset} bytes", "try again")
    with part.open("r+b" if wheel.offset else "wb") as file:
        file.truncate(wheel.offset)
        file.seek(wheel.offset)
        while left > 0 and (piece := _piece(wheel, lines, left)):
            file.write(piece)
            left -= len(piece)
        file.flush()
        os.fsync(file.fileno())
    if left > 0:
        raise Refusal("checksum", f"{wheel.name} ended {left} bytes too early", "send it again")
    if (found := _sha256(part)) != wheel.sha256:
        part.unlink()
        raise Refusal("checksum", f"{wheel.name}'s sha256 is {found}, not {wheel.sha256}", "send it again")
    part.replace(house / wheel.name)
    files.sync_directory(house)


def _piece(wheel: Wheel, lines: Lines, left: int) -> bytes:
    try:
        return lines.raw(min(PIECE_BYTES, left), SILENT_S)
    except TimeoutError as silence:
        message = f"{wheel.name}: {silence}, and {left} bytes are still to come"
        raise Refusal("checksum", message, "send it again: it goes on where it was") from silence


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
