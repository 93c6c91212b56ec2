"""Saving while training goes on, and resuming."""

from __future__ import annotations

import errno
import json
import os
import shutil
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from trainer.checkpoint import layout, tensors
from trainer.checkpoint.peers import Peers
from trainer.console import warn
from trainer.errors import CheckpointCorrupt, ConfigInvalid, NonFinite
from trainer.files import SCHEMA, sha256_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch.distributed as dist
    from torch import nn


class Checkpoints:
    """The checkpoints of a run.

    Every rank of `group` (the drafters; None is one process alone) makes the same calls in the same order. On
    several nodes, `directory` is on a file system that they share. `beat` is called while files are verified.
    """

    def __init__(
        self,
        directory: Path,
        keep: int,
        group: dist.ProcessGroup | None = None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._directory = directory
        self._keep = keep
        self._peers = Peers(group)
        self._beat = beat
        self._host = tensors.HostCopy()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._in_flight: Future[int] | None = None
        self._newest = max(layout.complete_steps(directory), default=None)
        # Without process groups torch warns at each save, from a thread where no filter can be set.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")

    def newest(self) -> int | None:
        """Step of the newest complete checkpoint that this process knows of."""
        return self._newest

    def begun(self) -> bool:
        """Whether there is a checkpoint or one is being written: the same on every rank at the same step."""
        return self._newest is not None or self._in_flight is not None

    def save(
        self,
        step: int,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        state: dict[str, Any],
        *,
        wait: bool,
    ) -> None:
        """Copy everything to host memory and write `step-<step>` from there, in a thread unless `wait`.

        `state` is JSON; `step` and the drafter's `shape` are added to it. A save in flight is waited for.

        Raises:
            NonFinite: a weight or the optimizer's state is not finite; nothing was saved.
            OSError: no space, or the directory cannot be written; of this save, or of the one in flight.
        """
        self.finish()
        told = json.dumps({"schema": SCHEMA, **state, "step": step, "shape": _shape(model)}, allow_nan=False)
        everything = tensors.model_tensors(model) | tensors.optimizer_tensors(model, optimizer)
        if not all(self._peers.gather(tensors.all_finite(everything))):
            raise NonFinite(
                f"checkpoint step-{step}: the weights or the optimizer's state are not finite, nothing was "
                "saved; resume from the checkpoint before, with a lower optim.lr if it comes again"
            )
        cuda = any(tensor.is_cuda for tensor in everything.values())
        mine = tensors.share(everything, self._peers.rank, self._peers.size)
        copy = self._host.take(mine | tensors.random_tensors(self._peers.rank, cuda=cuda))
        num_bytes = tensors.total_bytes(everything)
        self._in_flight = self._writer.submit(self._write, step, copy, told.encode(), num_bytes)
        if wait:
            self.finish()

    def check(self) -> int | None:
        """Step of a save that has come to its end since the last call, if there is one. Does not wait.

        Raises:
            OSError: it failed; the message names the path and the bytes needed.
        """
        if self._in_flight is None or not self._in_flight.done():
            return None
        return self.finish()

    def finish(self) -> int | None:
        """Wait for the save in flight, if there is one; its step.

        Raises:
            OSError: it failed; the message names the path and the bytes needed.
        """
        if self._in_flight is None:
            return None
        future, self._in_flight = self._in_flight, None
        self._newest = future.result()
        return self._newest

    def _write(self, step: int, copy: tensors.Tensors, state: bytes, num_bytes: int) -> int:
        """All of it but the copy; runs in the writer's thread on each rank."""
        directory, peers = self._directory, self._peers
        path = layout.temporary(directory, step)
        try:
            peers.led(lambda: layout.begin(directory, step, num_bytes + len(state)))
            peers.together(lambda: self._write_tensors(path, copy))
            digests = peers.together(lambda: self._hash_mine(path))
            merged = {file: digest for part in digests for file, digest in part.items()}
            peers.led(lambda: layout.publish(directory, step, state, merged))
        except OSError as error:
            explained = _explained(error, directory / f"step-{step}", num_bytes)
            shutil.rmtree(path, ignore_errors=True)  # what is left of it would keep the next one from fitting
            raise explained from error
        peers.led(lambda: layout.rotate(directory, self._keep))
        return step

    def _write_tensors(self, path: Path, copy: tensors.Tensors) -> None:
        # No copy ahead: the tensors are on the host, and its stream would wait for the training's.
        writer = FileSystemWriter(path, sync_files=True, per_thread_copy_ahead=0)
        group = self._peers.group
        save(copy, storage_writer=writer, process_group=group, no_dist=group is None)

    def _hash_mine(self, path: Path) -> dict[str, str]:
        prefix = f"__{self._peers.rank}_"
        names = [name for name in os.listdir(path) if name.startswith(prefix)]  # noqa: PTH208 - names alone
        names += [".metadata"] if self._peers.leader else []
        return {name: sha256_of(path / name) for name in names}

    def resume(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Any] | None:
        """Load the newest readable checkpoint in place and return its `state`; None if there is none at all.

        With an optimizer, what killed saves left is removed, and those passed over are set aside. Without
        one, only the weights are read and nothing is changed on disk.

        Raises:
            CheckpointCorrupt: there are complete checkpoints, and none can be read.
            ConfigInvalid: the checkpoint is of a drafter of another shape.
        """
        self.finish()
        directory, writes = self._directory, optimizer is not None
        if writes:
            self._peers.led(lambda: layout.tidy(directory))
        steps = self._peers.led(lambda: layout.complete_steps(directory))
        for step in reversed(steps):
            problem, state = self._try(directory / f"step-{step}", model, optimizer)
            if problem is None:
                for newer in [other for other in steps if other > step and writes]:
                    self._peers.led(lambda newer=newer: layout.set_aside(directory, newer))  # type: ignore[misc]
                self._newest = step
                return state
            if self._peers.leader:
                warn(f"checkpoint step-{step}: {problem}; trying the one before")
        if steps:
            raise CheckpointCorrupt(
                f"{directory}: none of the {len(steps)} complete checkpoints can be read; "
                "move the folder away to start anew"
            )
        return None

    def _try(
        self, path: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None
    ) -> tuple[str | None, dict[str, Any]]:
        """Verify and load one, each rank a part of it; the first problem of any rank, and the state."""
        peers = self._peers
        try:
            with layout.reading(path) as digests:
                problem = None
                mine = dict(sorted(digests.items())[peers.rank :: peers.size])
                try:
                    layout.verify(path, mine, self._beat)
                    state = layout.read_state(path)
                except layout.Corrupt as error:
                    problem, state = str(error), {}
                problem = _first(peers.gather(problem))
                if problem is None:
                    _require_shape(state, model, path)
                    problem = _first(peers.gather(_load_problem(path, model, optimizer, peers.rank)))
                return problem, state
        except layout.Corrupt as error:
            # No rank can read the marker, or this one alone: either way the others must hear of it.
            return _first(peers.gather(str(error))), {}


def _load_problem(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None, rank: int
) -> str | None:
    try:
        tensors.load(path, model, optimizer, rank)
    except layout.Corrupt as error:
        return str(error)
    return None


def _first(problems: list[str | None]) -> str | None:
    return next((problem for problem in problems if problem is not None), None)


def _explained(error: OSError, path: Path, num_bytes: int) -> OSError:
    """The error with the path, the bytes needed and those free, in its own number."""
    free = shutil.disk_usage(path.parent).free if path.parent.is_dir() else 0
    code = errno.ENOSPC if error.errno == errno.EIO and free < num_bytes else error.errno
    return OSError(
        code,
        f"checkpoint {path}: {error.strerror}; it needs {num_bytes:,} bytes, {free:,} are free; "
        "make room, or keep fewer with checkpoint.keep",
    )


def _shape(model: nn.Module) -> dict[str, Any]:
    """All that the drafter's tensors depend on, as JSON has it; empty for another model."""
    inner = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
    shape = getattr(inner, "shape", None)
    if not is_dataclass(shape) or isinstance(shape, type):
        return {}
    told: dict[str, Any] = json.loads(json.dumps(asdict(shape)))
    return told


def _require_shape(state: dict[str, Any], model: nn.Module, path: Path) -> None:
    saved = state.get("shape", {})
    for key, value in _shape(model).items():
        if saved.get(key) != value:
            raise ConfigInvalid(
                f"checkpoint {path.name}: {key}: it has {saved.get(key)}, the configuration wants {value}; "
                "allowed: the same drafter, or a new run"
            )
