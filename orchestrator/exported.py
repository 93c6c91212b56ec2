"""A finished drafter on this machine: pulled beside its place, checked, then put there in one step."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.connection import pull_files
from orchestrator.errors import ConfigError, GuestRefused, NotFound, OrchestratorError

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.connection import FarFile, GuestClient
    from orchestrator.connection.transfer import Progress

FOLDER = "export"
CONFIG, WEIGHTS = "config.json", "model.safetensors"
MAX_HEADER_BYTES = 100 << 20  # as safetensors itself has it
MAX_CONFIG_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A drafter in the z-lab format, and what its config.json says of it."""

    path: Path
    files: tuple[FarFile, ...]
    block_size: int | None
    num_tensors: int


def require_free(to: Path, *, force: bool) -> None:
    """Refuse to write where something is.

    Raises:
        ConfigError: `to` exists and `force` was not given, or it is no folder, or one that is no drafter's.
    """
    if to.is_symlink() or (to.exists() and not to.is_dir()):
        raise ConfigError(f"--to {to}: there is something that is no folder")
    if not to.is_dir() or not any(to.iterdir()):
        return
    if not ((to / CONFIG).is_file() and (to / WEIGHTS).is_file()):  # a slip must not cost a home directory
        what = "not empty, and no drafter is in it; --force does not replace it"
        raise ConfigError(f"--to {to}: it is {what}", hint="name another folder")
    if not force:
        raise ConfigError(
            f"--to {to}: it is not empty", hint="name another folder, or give --force to replace it"
        )


def export(
    client: GuestClient, run: str, to: Path, *, force: bool, progress: Progress | None = None
) -> Exported:
    """Pull `<run>/export` to the folder `to`; nothing is there before all of it is whole.

    What was cut lies in `.<name>.part` beside it and is taken up again.

    Raises:
        ConfigError: `to` is not free.
        NotFound: The run has exported nothing yet.
        OrchestratorError: It arrived damaged, is no drafter, or this machine has no space.
        BlindError: The way there broke.
    """
    require_free(to, force=force)
    part = to.with_name(f".{to.name}.part")
    try:
        part.mkdir(parents=True, exist_ok=True)
        files = pull_files(client, run, FOLDER, part, progress=progress)
        found = _checked(part, to, tuple(files))
        _put(part, to)
    except GuestRefused as refusal:
        _remove_empty(part)
        if refusal.reason != "not_found":
            raise
        raise NotFound(
            f"{client.name}: run {run!r} has exported no drafter",
            hint="the trainer exports at its end; `dflashctl status` tells how far it is",
        ) from refusal
    except OSError as error:
        raise OrchestratorError(f"--to {to}: {error.strerror}: {error.filename}") from error
    return found


def _checked(part: Path, to: Path, files: tuple[FarFile, ...]) -> Exported:
    """Read what was pulled as a server would begin to; what lies in `part` beside it is of no use."""
    names = {file.path.removeprefix(f"{FOLDER}/") for file in files}
    missing = {CONFIG, WEIGHTS} - names
    if missing:
        raise OrchestratorError(f"the export has no {' and no '.join(sorted(missing))}: it is no drafter")
    for path in sorted(part.rglob("*")):
        if path.is_file() and path.relative_to(part).as_posix() not in names:
            path.unlink()
    config = _read_config(part / CONFIG)
    inner = config.get("dflash_config")
    block_size = config.get("block_size") or (inner.get("block_size") if isinstance(inner, dict) else None)
    return Exported(
        path=to,
        files=files,
        block_size=block_size if isinstance(block_size, int) and not isinstance(block_size, bool) else None,
        num_tensors=count_tensors(part / WEIGHTS),
    )


def _read_config(path: Path) -> dict[str, Any]:
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise OrchestratorError(f"{path.name}: over {MAX_CONFIG_BYTES} bytes: it is no drafter's")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise OrchestratorError(f"{path.name}: not JSON: it is no drafter's") from error
    if not isinstance(value, dict):
        raise OrchestratorError(f"{path.name}: no JSON object: it is no drafter's")
    return value


def count_tensors(path: Path) -> int:
    """Return the number of tensors of a safetensors file whose header fits its size.

    The format: 8 bytes little-endian, the header's length; the header, JSON, with the `data_offsets` of each
    tensor, [begin, end) in the bytes behind it (github.com/huggingface/safetensors, README).

    Raises:
        OrchestratorError: It is no such file, or a part of it is missing.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            raise OrchestratorError(
                f"{path.name}: no safetensors file: its header cannot have {length} bytes"
            )
        text = file.read(length)
    try:
        header = json.loads(text)
        ends = [int(value["data_offsets"][1]) for name, value in header.items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise OrchestratorError(f"{path.name}: no safetensors file: its header cannot be read") from error
    if max(ends, default=0) != size - 8 - length:
        raise OrchestratorError(f"{path.name}: {size} bytes are not those that its header tells of")
    return len(ends)


def _put(part: Path, to: Path) -> None:
    old = to.with_name(f".{to.name}.old.{os.getpid()}")
    if to.exists():
        to.rename(old)
    try:
        part.rename(to)
    except OSError:
        if old.exists():
            old.rename(to)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _remove_empty(part: Path) -> None:
    if part.is_dir() and not any(part.iterdir()):
        part.rmdir()


def serving_lines(path: Path, block_size: int | None) -> tuple[str, str]:
    """Return how vLLM and SGLang are told of the drafter, to be put behind their own command for the target.

    SGLang counts the block's tokens, vLLM those drafted, which are one less.
    """
    drafted = block_size - 1 if block_size else "BLOCK_SIZE_MINUS_1"
    told = {"method": "dflash", "model": str(path), "num_speculative_tokens": drafted}
    vllm = f"vllm serve TARGET --speculative-config {shlex.quote(json.dumps(told))}"
    sglang = (
        "python -m sglang.launch_server --model-path TARGET --speculative-algorithm DFLASH "
        f"--speculative-draft-model-path {shlex.quote(str(path))} "
        f"--speculative-num-draft-tokens {block_size or 'BLOCK_SIZE'}"
    )
    return vllm, sglang
