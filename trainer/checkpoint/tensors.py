"""The tensors of a checkpoint: float32 weights, optimizer state, and each rank's random state.

Names are `model.<parameter>`, `optimizer.<parameter>.<key>`, `random.<rank>.<device>`: the same for a plain
model, a DDP replica and an FSDP2 shard, so that one is resumed from another. Hyper-parameters are the
configuration's and are not saved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.tensor import DTensor

from trainer.checkpoint.layout import Corrupt
from trainer.checkpoint.peers import FAILURES, failure

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import nn

Tensors = dict[str, Tensor]


def model_tensors(model: nn.Module) -> Tensors:
    """The weights themselves, not copies."""
    return _named_model(get_model_state_dict(model))


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensors:
    """The optimizer's state itself, begun if it is fresh."""
    return _named_optimizer(_optimizer_state(model, optimizer))


def _named_model(state: dict[str, Any]) -> Tensors:
    return {f"model.{name}": value for name, value in state.items()}


def _named_optimizer(state: dict[str, Any]) -> Tensors:
    return {
        f"optimizer.{name}.{key}": value
        for name, values in state["state"].items()
        for key, value in values.items()
    }


def _optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    fresh = not optimizer.state
    state = cast("dict[str, Any]", get_optimizer_state_dict(model, optimizer))
    if fresh:  # torch begins the state by a step of gradient zero, and counts it
        for values in state["state"].values():
            values["step"].zero_()
    return state


def random_tensors(rank: int, *, cuda: bool) -> Tensors:
    """The state of torch's own generators of this rank."""
    states = {f"random.{rank}.cpu": torch.get_rng_state()}
    if cuda:
        states[f"random.{rank}.cuda"] = torch.cuda.get_rng_state()
    return states


def total_bytes(tensors: Tensors) -> int:
    """Bytes of the tensors over all ranks, replicas counted once."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


@torch.no_grad()
def all_finite(tensors: Tensors) -> bool:
    """Whether this rank's part of each floating-point tensor is finite. Waits for the device."""
    local = [_local(tensor) for tensor in tensors.values() if tensor.is_floating_point()]
    if not local:
        return True
    # A finite sum has finite terms, and is quick to take; that of very large ones may not be finite.
    sums = torch.stack([part.sum().to(local[0].device) for part in local])
    return bool(sums.isfinite().all()) or all(bool(part.isfinite().all()) for part in local)


def share(tensors: Tensors, rank: int, size: int) -> Tensors:
    """What this rank writes: its shards, and of the replicated tensors a part of about equal bytes."""
    mine: Tensors = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, DTensor)}
    load = [0] * size
    replicated = [(name, tensor) for name, tensor in tensors.items() if name not in mine]
    for name, tensor in sorted(replicated, key=lambda item: (-item[1].nbytes, item[0])):
        writer = load.index(min(load))
        load[writer] += tensor.nbytes
        if writer == rank:
            mine[name] = tensor
    return mine


class HostCopy:
    """Copies in host memory, pinned for a GPU's, kept from one save to the next."""

    def __init__(self) -> None:
        self._buffers: Tensors = {}

    @torch.no_grad()
    def take(self, tensors: Tensors) -> Tensors:
        """Copy all of them; when it returns, the originals may change."""
        for name, tensor in tensors.items():
            if name not in self._buffers:
                self._buffers[name] = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
            self._buffers[name].copy_(tensor, non_blocking=True)
        if any(tensor.is_cuda for tensor in tensors.values()):
            torch.cuda.synchronize()
        return {name: self._buffers[name] for name in tensors}


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None, rank: int) -> None:
    """Read the checkpoint in `path` into the model and the optimizer, in place; each rank its own part.

    Raises:
        Corrupt: it does not hold these tensors.
    """
    model_state, optimizer_state = get_model_state_dict(model), {}
    tensors = _named_model(model_state)
    if optimizer is not None:
        optimizer.zero_grad(set_to_none=True)
        optimizer_state = _optimizer_state(model, optimizer)
        tensors |= _named_optimizer(optimizer_state)
    try:
        reader = FileSystemReader(path)
        saved = reader.read_metadata().state_dict_metadata
        random = random_tensors(rank, cuda=torch.cuda.is_available()) if optimizer is not None else {}
        random = {name: state for name, state in random.items() if name in saved}
        _require_sizes(tensors, saved)
        load_tensors({**tensors, **random}, storage_reader=reader, no_dist=True)
    except FAILURES as error:
        raise Corrupt(f"cannot be loaded: {failure(rank, error).text}") from error
    set_model_state_dict(model, model_state)
    if optimizer is not None:
        set_optimizer_state_dict(model, optimizer, optimizer_state)
    for name, state in random.items():
        torch.cuda.set_rng_state(state) if name.endswith("cuda") else torch.set_rng_state(state)


def _require_sizes(tensors: Tensors, saved: Mapping[str, Any]) -> None:
    for name, tensor in tensors.items():
        found = getattr(saved.get(name), "size", None)
        if found != tensor.shape:
            has = "no such tensor" if found is None else list(found)
            raise Corrupt(f"{name}: it has {has}, the drafter has {list(tensor.shape)}")


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
