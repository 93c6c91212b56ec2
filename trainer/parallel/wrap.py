"""One drafter on several ranks: whole on each (DDP), or shared out among them (FSDP2).

Either way gradients are the mean over the drafters, reduced in float32. Hooks sit on modules, so whatever is
compiled inside a layer's forward sees plain tensors.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from trainer.plan import shares_out

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch._C._distributed_c10d import GradBucket

    from trainer.config import ParallelConfig
    from trainer.parallel.group import Group

ONE_A_BUCKET_MB = 1 / (1 << 20)
"""Less than any gradient: each has a bucket of its own, after DDP's first step (`_reduce_each`)."""


def wrap(draft: nn.Module, group: Group, config: ParallelConfig, compute_dtype: torch.dtype) -> nn.Module:
    """Return what is called instead of `draft`; with one drafter that is `draft` itself.

    Its parameters must be equal on all drafters. Sharding changes `draft` in place: make the optimizer
    afterwards, from the parameters of what is returned. `draft.layers` are sharded one by one.
    """
    if group.drafters is None or group.topology.num_drafters == 1:
        return draft
    memory = _memory(group.device)
    if not shares_out(config, sum(p.numel() for p in draft.parameters()), memory):
        wrapped = DistributedDataParallel(
            draft,
            device_ids=[group.device] if group.device.type == "cuda" else None,
            process_group=group.drafters,
            gradient_as_bucket_view=True,
            bucket_cap_mb=ONE_A_BUCKET_MB,
        )
        # Through a lambda, since torch compares annotations, and does not know them as text.
        wrapped.register_comm_hook(group.drafters, lambda group, bucket: _reduce_each(group, bucket))
        return wrapped
    mesh = DeviceMesh.from_group(group.drafters, group.device.type)
    # Inputs as they are: rotary tables stay float32.
    policy = MixedPrecisionPolicy(
        param_dtype=compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    for layer in cast("Iterable[nn.Module]", draft.layers):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(draft, mesh=mesh, mp_policy=policy)
    return draft


def _reduce_each(group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Average each gradient of a bucket by itself.

    A ring adds in an order that depends on the place in what is reduced, and DDP has one bucket in its first
    step and others later: from three drafters on, the first step after a resume would be another one.
    """
    buffer: Tensor = bucket.buffer()
    mean = dist.ReduceOp.AVG  # by NCCL, on its way: another pass over all gradients is saved
    if not buffer.is_cuda:
        buffer.div_(group.size())
        mean = dist.ReduceOp.SUM
    *others, last = bucket.gradients()
    for gradient in others:  # in the first step alone
        dist.all_reduce(gradient, op=mean, group=group)
    reduced = dist.all_reduce(last, op=mean, group=group, async_op=True).get_future()

    def whole(done: torch.futures.Future[Any]) -> Tensor:
        done.value()  # raises what went wrong
        return buffer

    return cast("torch.futures.Future[Tensor]", reduced.then(whole))


def unwrap(wrapped: nn.Module) -> nn.Module:
    """Return the drafter inside; a sharded one is its own wrapper."""
    return cast("nn.Module", wrapped.module) if isinstance(wrapped, DistributedDataParallel) else wrapped


def accumulate(wrapped: nn.Module, *, last: bool) -> AbstractContextManager[Any]:
    """Context of a micro-batch's forward and backward: gradients are reduced only in the `last` of a step."""
    if isinstance(wrapped, DistributedDataParallel) and not last:
        return cast("AbstractContextManager[Any]", wrapped.no_sync())
    if isinstance(wrapped, FSDPModule):
        wrapped.set_requires_gradient_sync(last)
    return nullcontext()


def full_state(wrapped: nn.Module) -> dict[str, Tensor]:
    """All parameters, whole, by the drafter's own names, on the device. All drafters call it."""
    return dict(iterate_full(wrapped))


def iterate_full(wrapped: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The same one at a time, so that only one is whole at once. All drafters go through all of it."""
    for name, parameter in unwrap(wrapped).named_parameters():
        yield name, _whole(parameter.detach())


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _memory(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else 0
