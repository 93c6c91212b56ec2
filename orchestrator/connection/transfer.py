"""Files of a run, pulled here and pushed there: in pieces, resumed where they were cut, checked by sha256."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from orchestrator.connection.incoming import FarFile, Piece, incoming
from orchestrator.errors import GuestError, OrchestratorError

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.connection.guest import GuestClient

PUSH_TIMEOUT_S = 7200.0
CHECK_TIMEOUT_S = 600.0
SPARE_BYTES = 64 << 20  # that a disk of this machine keeps free
PIECE_BYTES = 1 << 20

Progress = Callable[[int, int], None]


def list_files(
    client: GuestClient, run: str, path: str, *, suffix: str = "", hashes: bool = False
) -> list[FarFile]:
    """Return the files of `path`, a file or folder of the run's directory; with `hashes`, their sha256.

    Raises:
        GuestRefused: `not_found`, or it may not be read.
        BlindError: The way there broke, or the answer is not the protocol.
    """
    request = {"run": run, "path": path, "suffix": suffix, "want": "hashes" if hashes else "names"}
    found = (event for event in incoming(client, request) if isinstance(event, FarFile))
    return [file for file in found if (file.sha256 is not None) == hashes]


def read_files(
    client: GuestClient, run: str, path: str, *, suffix: str = "", limit_bytes: int = 32 << 20
) -> dict[str, bytes]:
    """Return the content of small files by their paths.

    Raises:
        GuestRefused: `not_found`, or it may not be read.
        BlindError: The way there broke, the answer is not the protocol, or is over `limit_bytes` in all.
    """
    parts: dict[str, bytearray] = {}
    total = 0
    for event in incoming(client, {"run": run, "path": path, "suffix": suffix, "want": "data"}):
        held = parts.setdefault(event.path, bytearray())
        if isinstance(event, Piece):
            held += event.data
            total += len(event.data)
            if total > limit_bytes:
                raise GuestError(f"{client.name}: {path}: more than {limit_bytes} bytes of small files")
        elif event.sha256 not in (None, hashlib.sha256(held).hexdigest()):
            raise _damaged(client.name, event.path)
    return {name: bytes(held) for name, held in parts.items()}


def pull_files(
    client: GuestClient,
    run: str,
    path: str,
    into: Path,
    *,
    suffix: str = "",
    progress: Progress | None = None,
) -> list[FarFile]:
    """Pull files into `into`, under their paths below `path`; what lies there already is taken up, not sent.

    Each is checked by its sha256; one that was taken up and does not fit is pulled again whole. On an error
    or Ctrl-C what came so far stays, for the next time.

    Raises:
        GuestRefused: `not_found`, or it may not be read.
        OrchestratorError: It arrived damaged, or there is no space here.
        BlindError: The way there broke, or the answer is not the protocol.
    """
    listed = list_files(client, run, path, suffix=suffix)
    total = sum(file.size for file in listed)
    there = {file.path: _already(_place(into, path, file.path), file.size) for file in listed}
    require_space(into, total - sum(there.values()))
    pull = _Pull(client, run, path, into, lambda done: progress and progress(done, total))
    found = pull.all(suffix, there, {file.path: file.size for file in listed})
    again = [file for file in found if not pull.is_whole(file)]
    for file in again:
        if not there[file.path]:
            raise _damaged(client.name, file.path)
        _place(into, path, file.path).unlink()
        (fresh,) = pull.all(suffix, {}, {file.path: file.size}, only=file.path)
        if not pull.is_whole(fresh):
            raise _damaged(client.name, file.path)
    return found


def push_file(
    client: GuestClient, run: str, path: str, source: Path, sha256: str, *, progress: Progress | None = None
) -> bool:
    """Put `source` to `path` in the run's compile cache; returns whether it had to be sent.

    Raises:
        GuestRefused: No space there, or it arrived damaged.
        BlindError: The way there broke.
    """
    size = source.stat().st_size
    request: dict[str, Any] = {"run": run, "path": path, "size": size, "sha256": sha256}
    (answer,) = client.call("push", {**request, "check": True}, timeout_s=CHECK_TIMEOUT_S)
    if answer.get("already"):
        return False
    with source.open("rb") as file:
        client.call("push", request, payload=file, size=size, timeout_s=PUSH_TIMEOUT_S, progress=progress)
    return True


def sha256_of(path: Path) -> str:
    """Return a file's sha256.

    Raises:
        OSError: It cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def require_space(into: Path, needed: int) -> None:
    """Raise where `needed` bytes do not fit.

    Raises:
        OrchestratorError: They do not.
    """
    folder = into
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed + SPARE_BYTES:
        raise OrchestratorError(
            f"{folder}: {free} bytes are free on this machine, {needed + SPARE_BYTES} are needed",
            hint="free some space, or name another folder",
        )


class _Pull:
    """One pull into a folder, with the sum of what has come."""

    def __init__(
        self, client: GuestClient, run: str, path: str, into: Path, told: Callable[[int], object]
    ) -> None:
        self._client, self._run, self._path, self._into, self._told = client, run, path, into, told
        self._hashes: dict[str, str] = {}
        self._done = 0

    def all(
        self, suffix: str, offsets: dict[str, int], sizes: dict[str, int], *, only: str | None = None
    ) -> list[FarFile]:
        """Pull the files (or `only` that one) from their offsets on; return them as the guest hashed them."""
        request = {"run": self._run, "path": only or self._path, "suffix": suffix, "offsets": offsets}
        self._done += sum(offsets.values())
        self._told(self._done)
        ended: list[FarFile] = []
        writer: _Writer | None = None
        try:
            for event in incoming(self._client, request):
                if isinstance(event, Piece):
                    self._done += len(event.data)
                    self._told(self._done)
                    if writer is not None:
                        writer.write(event.data)
                elif event.sha256 is None:
                    if sizes.get(event.path) != event.size:
                        raise _changed(self._client.name, event.path)
                    writer = _Writer(_place(self._into, self._path, event.path))
                elif writer is not None:
                    self._hashes[event.path] = writer.end()
                    ended.append(event)
                    writer = None
        finally:
            if writer is not None:
                writer.close()
        _require_all(self._client.name, sizes, ended)
        return ended

    def is_whole(self, file: FarFile) -> bool:
        """Whether what lies here is what lay there."""
        return self._hashes[file.path] == file.sha256


class _Writer:
    """A file that goes on where it ended, hashed from its start."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._digest = hashlib.sha256()
        self._file = path.open("a+b")
        self._file.seek(0)
        while piece := self._file.read(PIECE_BYTES):
            self._digest.update(piece)

    def write(self, data: bytes) -> None:
        self._digest.update(data)
        self._file.write(data)

    def end(self) -> str:
        """Make it last; return the sha256."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self._digest.hexdigest()

    def close(self) -> None:
        self._file.close()


def _place(into: Path, path: str, name: str) -> Path:
    below = name.removeprefix(path).lstrip("/")
    return into / (below or name.rsplit("/", 1)[-1])


def _already(place: Path, size: int) -> int:
    """Bytes that are here from an earlier pull; a file that is too long is none of this one."""
    if not place.is_file():
        return 0
    here = place.stat().st_size
    if here > size:
        place.unlink()
        return 0
    return here


def _require_all(name: str, sizes: dict[str, int], ended: Iterable[FarFile]) -> None:
    missing = sizes.keys() - {file.path for file in ended}
    if missing:
        raise _changed(name, min(missing))


def _changed(name: str, path: str) -> OrchestratorError:
    return OrchestratorError(f"{name}: {path}: it changed while it was pulled", hint="try again")


def _damaged(name: str, path: str) -> OrchestratorError:
    return OrchestratorError(f"{name}: {path}: it arrived damaged: another sha256", hint="try again")
