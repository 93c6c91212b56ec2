"""A recording in a .tar.gz: unpacked into a folder of its own; plain files only, of bounded size."""

from __future__ import annotations

import tarfile
import tempfile
import zlib
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError, NotFound
from orchestrator.replay.recording import META
from orchestrator.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_MEMBERS = 20_000
MAX_BYTES = 8 << 30
_ENDINGS = (".tar.gz", ".tgz")


def is_archive(path: Path) -> bool:
    """Whether the name is that of a packed recording; a folder may have such a name, too."""
    return path.name.endswith(_ENDINGS) and not path.is_dir()


def recording_name(path: Path) -> str:
    """Return the name of the folder in a packed recording, or of the folder that it is."""
    return next((path.name.removesuffix(each) for each in _ENDINGS if path.name.endswith(each)), path.name)


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """The folder of a packed recording, while it is needed.

    Raises:
        NotFound: There is no such file.
        ConfigError: It is no archive, is damaged, is too large, or holds no recording.
    """
    with tempfile.TemporaryDirectory(prefix="dflashctl-replay-") as made:
        base = Path(made)
        name = one_line(str(path))
        try:
            with tarfile.open(path, "r:gz") as archive:
                _unpack(archive, base, name)
        except FileNotFoundError as error:
            raise NotFound(f"{name}: no such file") from error
        except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
            raise ConfigError(f"{name}: cannot be unpacked: {error}") from error
        found = sorted(base.rglob(META), key=lambda each: len(each.parts))
        if not found:
            raise ConfigError(f"{name}: no {META} in it", hint="`dflashctl record RUN` writes recordings")
        folder = found[0].parent
        try:
            yield folder
        except ConfigError as error:  # the folder of a moment is nothing that a person can look at
            raise ConfigError(error.message.replace(str(folder), name), hint=error.hint) from error


def _unpack(archive: tarfile.TarFile, base: Path, name: str) -> None:
    total = 0
    for count, member in enumerate(archive):
        total += member.size
        if count >= MAX_MEMBERS or total > MAX_BYTES:
            raise ConfigError(f"{name}: more than {MAX_MEMBERS} files or {MAX_BYTES} bytes in it")
        parts = PurePosixPath(member.name).parts
        if member.isdir():
            continue
        # Links and devices are never of a recording, and a path that leads out of it is an attack.
        if not member.isreg() or ".." in parts or member.name.startswith("/") or not parts:
            raise ConfigError(f"{name}: {one_line(member.name)!r} is no plain file below the archive")
        source = archive.extractfile(member)
        if source is None:
            continue
        target = base.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            while chunk := source.read(1 << 20):
                file.write(chunk)
