"""A wheelhouse: a folder of wheels on this machine, carried to a container that reaches no index."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.act import actor
from orchestrator.connection import sha256_of
from orchestrator.errors import ConfigError, GuestRefused
from orchestrator.provision.lock import canonical
from orchestrator.provision.saying import Moment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from orchestrator.connection import GuestClient
    from orchestrator.provision.form import Venv
    from orchestrator.provision.lock import Lock

MANIFEST = "wheelhouse.json"
SENDING = "sending the wheels"
CHECK_TIMEOUT_S = 900.0
PUSH_TIMEOUT_S = 4 * 3600.0
_WHEEL = re.compile(
    r"(?P<name>[A-Za-z0-9._]+)-(?P<version>[^-]+)(-\d[^-]*)?-(?P<tags>[^-]+-[^-]+-[^-]+)\.whl"
)
_MAKE = "make it with `dflashctl provision --make-wheelhouse DIR` where there is a network"


@dataclass(frozen=True)
class File:
    """One wheel."""

    path: Path
    size: int
    sha256: str

    @property
    def told(self) -> dict[str, Any]:
        """As the guest is told of it."""
        return {"name": self.path.name, "size": self.size, "sha256": self.sha256}


@dataclass(frozen=True)
class Wheelhouse:
    """The wheels of a folder; `label` names their contents, in whatever folder they lie."""

    files: tuple[File, ...]
    python: str | None  # that it was made for

    @property
    def label(self) -> str:
        """Equal for equal contents."""
        body = json.dumps(sorted((each.path.name, each.sha256) for each in self.files))
        return f"wheelhouse {hashlib.sha256(body.encode()).hexdigest()[:12]}"

    @property
    def names(self) -> tuple[str, ...]:
        """The files' names."""
        return tuple(each.path.name for each in self.files)

    @property
    def num_bytes(self) -> int:
        """Of all together."""
        return sum(each.size for each in self.files)


def read_wheelhouse(folder: Path, told: Callable[[Moment], None]) -> Wheelhouse:
    """Return a folder's wheels. The hashes are its manifest's, which the container checks, or made here.

    Raises:
        ConfigError: There are none, or the folder is not as its manifest says.
    """
    wheels = sorted(folder.glob("*.whl")) if folder.is_dir() else []
    if not wheels:
        raise ConfigError(f"--wheelhouse {folder}: no wheel is there", hint=_MAKE)
    manifest = _manifest(folder)
    known = _known(manifest)
    total, done, files = sum(path.stat().st_size for path in wheels), 0, []
    for path in wheels:
        size, there = path.stat().st_size, known.get(path.name)
        if there is not None and there[0] != size:
            raise ConfigError(f"{path}: it has {size} bytes, not the {there[0]} of {MANIFEST}", hint=_MAKE)
        if there is None:
            told(Moment(f"hashing {path.name}", done, total, is_bytes=True))
        files.append(File(path, size, there[1] if there is not None else sha256_of(path)))
        done += size
    if gone := sorted(set(known) - {path.name for path in wheels}):
        raise ConfigError(f"{folder}: {gone[0]} is in {MANIFEST} and not there", hint=_MAKE)
    python = manifest.get("python")
    return Wheelhouse(tuple(files), python if isinstance(python, str) else None)


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        body: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        _known(body)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise ConfigError(f"{folder / MANIFEST}: not readable: {error!r}", hint=_MAKE) from error
    return body


def _known(manifest: dict[str, Any]) -> dict[str, tuple[int, str]]:
    """Return size and sha256 of each file that a manifest names."""
    files = manifest.get("files")
    told = files.items() if isinstance(files, dict) else ()
    return {name: (int(each["size"]), str(each["sha256"])) for name, each in told}


def write_manifest(folder: Path, wheelhouse: Wheelhouse, facts: dict[str, Any]) -> None:
    """Write what lies there; the last thing that is done to a folder."""
    body = {"schema": 1, **facts, "files": {each.path.name: each.told for each in wheelhouse.files}}
    temp = folder / f".{MANIFEST}.tmp"
    temp.write_text(json.dumps(body, indent=1), encoding="utf-8")
    temp.replace(folder / MANIFEST)


def check_fit(house: Wheelhouse, venv: Venv, lock: Lock, python: str, *, needs_pip: bool) -> None:
    """Refuse a wheelhouse of which it is plain that it cannot do.

    Raises:
        ConfigError: It is for another Python, or lacks a locked package.
    """
    if house.python is not None and house.python != python:
        raise ConfigError(
            f"the wheelhouse is for Python {house.python}, and the container has {python}", hint=_MAKE
        )
    there = {
        (canonical(m["name"]), m["version"].partition("+")[0])
        for m in map(_WHEEL.fullmatch, house.names)
        if m
    }
    for each in venv.requirements:
        version = lock.version(each, python)
        if version is not None and (canonical(each), version) not in there:
            raise ConfigError(
                f"the wheelhouse has no wheel of {canonical(each)} {version}, which is locked", hint=_MAKE
            )
    if needs_pip and not any(name == "pip" for name, _ in there):
        raise ConfigError(
            "the container's Python has no ensurepip, and the wheelhouse has no pip",
            hint="put pip's wheel there: `pip download --no-deps -d DIR pip`",
        )


def send(client: GuestClient, key: str, house: Wheelhouse, told: Callable[[Moment], None]) -> int:
    """Bring the wheels to the container; what is there already is taken up. Return the bytes that were sent.

    Raises:
        GuestRefused: No space there, or one arrived damaged.
        BlindError: The way there broke; a second call goes on where it was.
    """
    files = [each.told for each in house.files]
    request: dict[str, Any] = {"key": key, "files": files, "check": True}
    told(Moment(f"looking which of {len(files)} wheels are there"))
    (answer,) = client.call("wheels", request, timeout_s=CHECK_TIMEOUT_S)
    have = answer["have"] if isinstance(answer.get("have"), dict) else {}
    rest = [(each, _offset(have.get(each.path.name), each.size)) for each in house.files]
    missing = [(each, offset) for each, offset in rest if offset < each.size]
    if not missing:
        return 0
    total = house.num_bytes
    size = sum(each.size - offset for each, offset in missing)
    try:
        client.call(
            "wheels",
            {
                "key": key,
                "files": [{**each.told, "offset": offset} for each, offset in missing],
                "by": actor(),
            },
            payload=_Bytes(missing),
            size=size,
            timeout_s=PUSH_TIMEOUT_S,
            progress=lambda done, _: told(Moment(SENDING, total - size + done, total, is_bytes=True)),
        )
    except GuestRefused as refusal:
        if refusal.reason == "checksum":
            _require_whole(house)
        raise
    return size


def _require_whole(house: Wheelhouse) -> None:
    """Refuse a wheel that is damaged here already; sending it again would not help."""
    for each in house.files:
        if (found := sha256_of(each.path)) != each.sha256:
            message = f"{each.path}: its sha256 is {found}, not the {each.sha256} of {MANIFEST}"
            raise ConfigError(message, hint=_MAKE)


def _offset(have: object, size: int) -> int:
    return have if isinstance(have, int) and not isinstance(have, bool) and 0 <= have <= size else 0


class _Bytes:
    """Files, each from its offset on, as one thing to read."""

    def __init__(self, files: list[tuple[File, int]]) -> None:
        self._pieces = self._read(files)
        self._rest = b""

    def _read(self, files: list[tuple[File, int]]) -> Iterator[bytes]:
        for each, offset in files:
            with each.path.open("rb") as file:
                file.seek(offset)
                while piece := file.read(1 << 20):
                    yield piece

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; nothing at the end."""
        if not self._rest:
            self._rest = next(self._pieces, b"")
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece
