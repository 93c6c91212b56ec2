"""Compile artifacts of runs, kept on this machine too: `<fingerprint>.bin` with `<fingerprint>.json`.

The pair is the trainer's own; here it is only carried and checked. Loading one runs code (torch unpickles
it), so each is kept under the container and run that it came from.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from orchestrator.connection import FarFile, list_files, pull_files, push_file, read_files, sha256_of
from orchestrator.errors import GuestRefused, NotFound, OrchestratorError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from orchestrator.connection import GuestClient
    from orchestrator.connection.transfer import Progress

FOLDER = "compile-cache/artifacts"
_FINGERPRINT = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """One pair. `problem` says what keeps it from being whole, as far as was looked."""

    fingerprint: str
    torch: str = ""
    device: str = ""
    num_bytes: int = 0
    sha256: str = ""
    at: datetime | None = None
    compile_s: float | None = None
    problem: str | None = None


def parse(name: str, data: bytes) -> Artifact:
    """Return what a pair's .json says; `name` is the file's. One that is wrong has a problem."""
    fingerprint = name.removesuffix(".json")
    try:
        value = json.loads(data)
        origin, told = value["origin"], value["bin"]
        canonical = json.dumps(origin, sort_keys=True, separators=(",", ":"))
        made = hashlib.sha256(canonical.encode()).hexdigest()
        found = Artifact(
            fingerprint=fingerprint,
            torch=str(origin["torch"]),
            device=str(origin["device"]),
            num_bytes=int(told["bytes"]),
            sha256=str(told["sha256"]),
            at=_instant(value.get("at")),
            compile_s=_number(value.get("compile_s")),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"its .json cannot be read: {type(error).__name__}"
        return Artifact(fingerprint=fingerprint, problem=why)
    if not _FINGERPRINT.match(fingerprint) or made != fingerprint or value.get("fingerprint") != fingerprint:
        return Artifact(fingerprint=fingerprint, problem="its name is not the sha256 of its origin")
    return found


def judge(artifact: Artifact, size: int | None, sha256: str | None = None) -> Artifact:
    """Return the artifact with the problem of its .bin, which has this size (None: it is missing)."""
    if artifact.problem is not None:
        return artifact
    if size is None:
        return replace(artifact, problem="its .bin is missing")
    if size != artifact.num_bytes:
        return replace(artifact, problem=f"its .bin has {size} bytes, not {artifact.num_bytes}")
    if sha256 is not None and sha256 != artifact.sha256:
        return replace(artifact, problem=f"its .bin has another sha256: {sha256[:12]}")
    return artifact


def _instant(text: object) -> datetime | None:
    if not isinstance(text, str) or not text.endswith("Z"):
        return None
    return datetime.fromisoformat(text[:-1]).replace(tzinfo=timezone.utc)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def far_artifacts(client: GuestClient, run: str, *, check: bool = False) -> list[Artifact]:
    """Return the artifacts of a run where it lives; with `check`, their bytes are hashed there.

    Raises:
        GuestRefused: It may not be read.
        BlindError: The way there broke, or the answer is not the protocol.
    """
    try:
        told = read_files(client, run, FOLDER, suffix=".json")
        files = list_files(client, run, FOLDER, suffix=".bin", hashes=check)
    except GuestRefused as refusal:
        if refusal.reason != "not_found":
            raise
        return []
    by_name = {_name(file.path): file for file in files}
    return _judged({_name(path): data for path, data in told.items()}, by_name)


def _judged(told: Mapping[str, bytes], files: Mapping[str, FarFile]) -> list[Artifact]:
    found = []
    for name in sorted(told):
        file = files.get(f"{name.removesuffix('.json')}.bin")
        found.append(
            judge(parse(name, told[name]), file.size if file else None, file.sha256 if file else None)
        )
    lonely = sorted(name for name in files if f"{name.removesuffix('.bin')}.json" not in told)
    problem = "its .json is missing: it was not saved to its end"
    return found + [Artifact(fingerprint=name.removesuffix(".bin"), problem=problem) for name in lonely]


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def pick(artifacts: list[Artifact], prefix: str | None, where: str) -> list[Artifact]:
    """Return the whole artifacts whose fingerprint begins so; all of them without a prefix.

    Raises:
        NotFound: None does.
        OrchestratorError: One that is named is damaged.
    """
    there = ", ".join(each.fingerprint[:12] for each in artifacts) or "none"
    named = [each for each in artifacts if prefix is None or each.fingerprint.startswith(prefix)]
    if not named:
        what = f"no artifact {prefix!r}" if prefix is not None else "no compile artifact"
        hint = (
            f"there are: {there}"
            if artifacts
            else "the trainer saves one after its warm-up where inductor compiles (a GPU)"
        )
        raise NotFound(f"{where}: {what}", hint=hint)
    whole = [each for each in named if each.problem is None]
    if not whole:
        first = named[0]
        raise OrchestratorError(f"{where}: artifact {first.fingerprint[:12]}: {first.problem}")
    return whole


class Store:
    """The artifacts on this machine, beside the record."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def beside(cls, record: Path) -> Store:
        """Return the store that belongs to a record."""
        return cls(record.parent / "compile-cache")

    def folder(self, target_key: str, run: str) -> Path:
        """Return where a run's artifacts are kept."""
        return self.root / re.sub(r"[^A-Za-z0-9._-]", "_", target_key) / run

    def places(self) -> list[tuple[str, str]]:
        """Return (target, run) of what is kept, by name; the target as its folder is spelled."""
        folders = sorted(path for path in self.root.glob("*/*") if path.is_dir())
        return [(path.parent.name, path.name) for path in folders]

    def artifacts(self, target_key: str, run: str, *, check: bool = False) -> list[Artifact]:
        """Return what is kept of a run; with `check`, hashed.

        Raises:
            OrchestratorError: A file cannot be read.
        """
        folder = self.folder(target_key, run)
        try:
            told = {path.name: path.read_bytes() for path in folder.glob("[0-9a-f]*.json")}
            files = {
                path.name: FarFile(
                    path=path.name, size=path.stat().st_size, sha256=sha256_of(path) if check else None
                )
                for path in folder.glob("[0-9a-f]*.bin")
            }
        except OSError as error:
            raise OrchestratorError(f"{error.filename}: cannot be read: {error.strerror}") from error
        return _judged(told, files)

    def save(
        self,
        client: GuestClient,
        target_key: str,
        run: str,
        artifact: Artifact,
        progress: Progress | None = None,
    ) -> Path:
        """Pull an artifact into the store, its .json last; what was cut is taken up again.

        Raises:
            OrchestratorError: It arrived damaged, or there is no space.
            BlindError: The way there broke.
        """
        folder = self.folder(target_key, run)
        part = folder / ".part"
        part.mkdir(mode=0o700, parents=True, exist_ok=True)
        for ending in ("bin", "json"):
            name = f"{artifact.fingerprint}.{ending}"
            pull_files(client, run, f"{FOLDER}/{name}", part, progress=progress if ending == "bin" else None)
        binary, told = (part / f"{artifact.fingerprint}.{ending}" for ending in ("bin", "json"))
        checked = judge(parse(told.name, told.read_bytes()), binary.stat().st_size, sha256_of(binary))
        if checked.problem is not None:
            binary.unlink()
            told.unlink()
            raise OrchestratorError(f"{client.name}: {run}: {artifact.fingerprint[:12]}: {checked.problem}")
        (folder / told.name).unlink(missing_ok=True)
        binary.replace(folder / binary.name)
        told.replace(folder / told.name)
        return folder / binary.name

    def restore(
        self,
        client: GuestClient,
        source: tuple[str, str],
        run: str,
        artifact: Artifact,
        progress: Progress | None = None,
    ) -> bool:
        """Push a kept artifact to a run, its .json last; returns whether anything had to be sent.

        Raises:
            GuestRefused: No space there.
            BlindError: The way there broke.
        """
        folder = self.folder(*source)
        was_sent = False
        for ending, sha256 in (("bin", artifact.sha256), ("json", None)):
            path = folder / f"{artifact.fingerprint}.{ending}"
            told = progress if ending == "bin" else None
            far = f"{FOLDER}/{path.name}"
            was_sent |= push_file(client, run, far, path, sha256 or sha256_of(path), progress=told)
        return was_sent
