"""Tokenise the documents into a store: by one rank, once; the others wait for it.

The rank that does it leaves two files beside the store under way: NAME.progress, which changes while it is
alive, and NAME.failed, with its words, when it gives up.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer.data.documents import read_documents, source_files
from trainer.data.store import HELD_OUT, TRAIN, Store, open_store
from trainer.data.tokenise import Limits, tokenise
from trainer.data.tokenizers import open_tokenizer, tokenizer_fingerprint
from trainer.errors import DataInvalid, TrainerError
from trainer.files import sha256_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trainer.config import Config

FORMAT = 1
"""Of the store and of what is done to the documents; another one makes other fingerprints."""
POLL_S = 0.2
SILENT_S = 900.0
"""Without any progress of the lead rank for so long, the others give up."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The store that a configuration asks for."""

    config: Config
    vocab_size: int
    fingerprint: str
    directory: Path

    @property
    def progress(self) -> Path:
        """Changes while the lead rank is at work."""
        return self.directory.with_name(f"{self.directory.name}.progress")

    @property
    def failed(self) -> Path:
        """Why the lead rank gave up."""
        return self.directory.with_name(f"{self.directory.name}.failed")


def prepare(
    config: Config,
    vocab_size: int,
    directory: Path,
    *,
    lead: bool,
    beat: Callable[[], None],
    tell: Callable[[str], None],
) -> Store:
    """The store of the configured documents under `directory`, made if it is not there yet.

    Raises:
        ConfigInvalid: paths or the tokenizer are not given as they must be.
        DataInvalid: too many bad lines, or nothing to train on; on other ranks, that the lead rank failed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    before = _stamps(directory)
    fingerprint = fingerprint_of(config, vocab_size, beat)
    wanted = Wanted(config, vocab_size, fingerprint, directory / f"tokens-{fingerprint[:16]}")
    store = _lead(wanted, beat, tell) if lead else _follow(wanted, before, beat)
    bad = store.counts["bad"]
    if bad > config.data.max_bad_lines:
        raise DataInvalid(
            f"{store.directory / 'bad-lines.txt'}: {bad} bad lines, over data.max_bad_lines, "
            f"{config.data.max_bad_lines}; correct them or raise it"
        )
    return store


def fingerprint_of(config: Config, vocab_size: int, beat: Callable[[], None]) -> str:
    """sha256 over all that the store depends on: files, tokenizer, template and limits."""
    data = config.data
    digest = hashlib.sha256(f"{FORMAT} {data.source} {vocab_size} {Limits.of(data)}".encode())
    digest.update(tokenizer_fingerprint(config).encode())
    for root, files in _sources(config).values():
        for file in files:
            name = file.relative_to(root).as_posix()
            digest.update(f"\0{name}\0{file.stat().st_size}\0{_hash(file, beat)}".encode())
        digest.update(b"\0\0")
    return digest.hexdigest()


def _sources(config: Config) -> dict[str, tuple[Path, list[Path]]]:
    """Folder and files of each part; held-out documents come first, if they have files of their own."""
    data = config.data
    found = {TRAIN: source_files(data.path, data.source)}
    if data.held_out_path:
        held_out = source_files(data.held_out_path, data.source, "data.held_out_path")
        found = {HELD_OUT: held_out, **found}
    return found


def _hash(file: Path, beat: Callable[[], None]) -> str:
    try:
        return sha256_of(file, beat)
    except OSError as error:
        raise DataInvalid(f"{file}: cannot be read: {error.strerror}; every rank must be able to") from error


def _lead(wanted: Wanted, beat: Callable[[], None], tell: Callable[[str], None]) -> Store:
    wanted.failed.unlink(missing_ok=True)
    store = open_store(wanted.directory)
    if store is not None and store.fingerprint == wanted.fingerprint:
        tell(f"tokens of an earlier run in {wanted.directory.name}")
        return store
    _remove_leftovers(wanted)
    under_way = wanted.directory.with_name(
        f".{wanted.directory.name}.{socket.gethostname()}.{os.getpid()}.tmp"
    )
    try:
        _tokenise(wanted, under_way, beat, tell)
    except (TrainerError, OSError) as error:
        shutil.rmtree(under_way, ignore_errors=True)
        wanted.failed.write_text(f"{error}\n", encoding="utf-8")
        raise
    finally:
        wanted.progress.unlink(missing_ok=True)
    return _require(wanted)


def _tokenise(wanted: Wanted, under_way: Path, beat: Callable[[], None], tell: Callable[[str], None]) -> None:
    data = wanted.config.data
    limits = Limits.of(data)

    def alive(documents: int) -> None:
        wanted.progress.write_text(f"{documents}\n", encoding="ascii")
        beat()

    found = {
        name: read_documents(root, files, data.source, limits.max_text_bytes)
        for name, (root, files) in _sources(wanted.config).items()
    }
    tokenise(
        found,
        open_tokenizer(wanted.config),
        limits,
        under_way,
        fingerprint=wanted.fingerprint,
        vocab_size=wanted.vocab_size,
        max_bad=data.max_bad_lines,
        alive=alive,
        tell=tell,
    )
    try:
        under_way.rename(wanted.directory)
    except OSError:
        # The lead rank of another host may have been faster, on a file system that both see.
        if open_store(wanted.directory) is None:
            raise
        shutil.rmtree(under_way)


def _remove_leftovers(wanted: Wanted) -> None:
    """What a lead rank that was killed left behind."""
    if wanted.directory.exists():
        shutil.rmtree(wanted.directory)
    for left in wanted.directory.parent.glob(f".{wanted.directory.name}.{socket.gethostname()}.*.tmp"):
        pid = left.name.split(".")[-2]
        if pid.isdecimal() and (int(pid) == os.getpid() or not _is_alive(int(pid))):
            shutil.rmtree(left, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _follow(wanted: Wanted, before: dict[str, int], beat: Callable[[], None]) -> Store:
    """Wait. A word of failure that was there before is of an earlier run."""
    seen, since = "", time.monotonic()
    while (store := open_store(wanted.directory)) is None:
        stamp = _stamp(wanted.failed)
        if stamp is not None and stamp != before.get(wanted.failed.name):
            words = wanted.failed.read_text(encoding="utf-8").strip()
            raise DataInvalid(f"the rank that prepares the data gave up: {words}")
        progress = _read(wanted.progress)
        if progress != seen:
            seen, since = progress, time.monotonic()
        if time.monotonic() - since > SILENT_S:
            raise DataInvalid(
                f"{wanted.directory}: not there, and the rank that makes it showed no progress for "
                f"{SILENT_S:.0f} s; look for that rank's own error, and that all ranks see this folder"
            )
        beat()
        time.sleep(POLL_S)  # noqa: TID251 - waits for another rank's file
    return store


def _require(wanted: Wanted) -> Store:
    store = open_store(wanted.directory)
    if store is None:
        raise DataInvalid(f"{wanted.directory}: was made and is gone; keep other programs out of that folder")
    return store


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except FileNotFoundError:
        return ""


def _stamp(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _stamps(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in directory.glob("*.failed")}
