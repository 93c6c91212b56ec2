"""Checkpoints that are complete or absent, and hold all that resuming needs.

`step-<n>/` has model.safetensors (weights), state.pt (optimizer, random state, position in the data) and
COMPLETE, a JSON object with the sha256 of both. It is written beside its final name and renamed.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import re
import shutil
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from trainer.console import warn
from trainer.errors import CheckpointCorrupt, ConfigInvalid
from trainer.files import SCHEMA, sync_directory, write_durably

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.model import DraftModel

MARKER = "COMPLETE"
_NAME = re.compile(r"step-(\d+)")


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a checkpoint said beside the weights and the optimizer state, which are loaded in place."""

    step: int
    corpus: str
    loss: float | None


class Corrupt(Exception):  # noqa: N818 - a state of a checkpoint, not an end of the program
    """This one checkpoint cannot be read back as it was written; an older one may."""


def save_checkpoint(
    directory: Path,
    *,
    step: int,
    loss: float | None,
    draft: DraftModel,
    optimizer: torch.optim.Optimizer,
    corpus: str,
    keep: int,
) -> None:
    """Write `step-<step>` durably, then drop all but the `keep` newest complete ones.

    Raises:
        OSError: no space, or the directory cannot be written.
    """
    state = {
        "optimizer": optimizer.state_dict(),
        "random": torch.get_rng_state(),
        "step": step,
        "corpus": corpus,
        "loss": loss,
        "shape": json.dumps(asdict(draft.shape)),
    }
    buffer = io.BytesIO()
    torch.save(state, buffer)
    files = {"model.safetensors": save(dict(draft.state_dict())), "state.pt": buffer.getvalue()}
    _publish(directory, f"step-{step}", files)
    for old in complete_steps(directory)[:-keep]:
        shutil.rmtree(directory / f"step-{old}")


def _publish(directory: Path, name: str, files: dict[str, bytes]) -> None:
    temporary = directory / f".{name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    for file, data in files.items():
        write_durably(temporary / file, data)
    digests = {file: hashlib.sha256(data).hexdigest() for file, data in files.items()}
    write_durably(temporary / MARKER, json.dumps({"schema": SCHEMA, "sha256": digests}).encode())
    sync_directory(temporary)
    final = directory / name
    if final.exists():  # a corrupt one that was passed over, and its step reached again
        shutil.rmtree(final)
    temporary.rename(final)
    sync_directory(directory)


def complete_steps(directory: Path) -> list[int]:
    """Steps of the complete checkpoints, oldest first."""
    if not directory.is_dir():
        return []
    names = (_NAME.fullmatch(path.name) for path in directory.iterdir() if (path / MARKER).is_file())
    return sorted(int(match[1]) for match in names if match)


def resume(directory: Path, draft: DraftModel, optimizer: torch.optim.Optimizer) -> Resumed | None:
    """Load the newest readable checkpoint in place; None if there is none at all.

    Raises:
        CheckpointCorrupt: there are complete checkpoints, and none can be read.
        ConfigInvalid: the checkpoint is of a drafter of another shape.
    """
    steps = complete_steps(directory)
    for step in reversed(steps):
        path = directory / f"step-{step}"
        try:
            weights, state = _read(path)
        except Corrupt as error:
            warn(f"checkpoint {path.name}: {error}; trying the one before")
            continue
        _require_shape(state["shape"], draft, path)
        draft.load_state_dict(weights)
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        return Resumed(state["step"], state["corpus"], state["loss"])
    if steps:
        raise CheckpointCorrupt(
            f"{directory}: none of the {len(steps)} complete checkpoints can be read; "
            "move the folder away to start anew"
        )
    return None


def _read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    try:
        digests = json.loads((path / MARKER).read_bytes())["sha256"]
        files = {file: (path / file).read_bytes() for file in ("model.safetensors", "state.pt")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"unreadable: {error}") from error
    for file, data in files.items():
        if hashlib.sha256(data).hexdigest() != digests.get(file):
            raise Corrupt(f"{file} is not what was written: its sha256 differs from that in {MARKER}")
    try:
        state = torch.load(io.BytesIO(files["state.pt"]), weights_only=True)
        return load(files["model.safetensors"]), state
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise Corrupt(f"not a checkpoint of this trainer: {error}") from error


def _require_shape(saved_json: str, draft: DraftModel, path: Path) -> None:
    saved, wanted = json.loads(saved_json), json.loads(json.dumps(asdict(draft.shape)))
    for key, value in wanted.items():
        if saved.get(key) != value:
            raise ConfigInvalid(
                f"checkpoint {path.name}: {key}: it has {saved.get(key)}, the configuration wants {value}; "
                "allowed: the same drafter, or a new run"
            )
