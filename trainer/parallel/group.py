"""Process groups: all ranks (gloo), the drafters (NCCL or gloo), each pair of target and drafter."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from itertools import product
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch import distributed as dist

from trainer.parallel.store import connect

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from trainer.config import ParallelConfig
    from trainer.parallel.topology import Topology

PATIENT = timedelta(days=7)
"""For what waits for another rank's work, such as an evaluation: who watches for deaths is `failfast`."""

PAIR_CTAS = 2
"""Multiprocessors that a pair's transfer may take: a posted receive spins on them until its data has come,
for most of a step; two move tens of GB/s over NVLink, where a micro-batch is one or two GB."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """What a rank needs to talk. A single process has no groups, and every method is then trivial."""

    topology: Topology
    device: torch.device
    control: ProcessGroup | None = None
    """All ranks, CPU tensors, patient."""
    drafters: ProcessGroup | None = None
    """The drafters, tensors of the device; after parallel.timeout_s an error. None on other ranks."""
    drafters_cpu: ProcessGroup | None = None
    """The drafters, CPU tensors, patient: for decisions, and for checkpoints."""
    pairs: dict[tuple[int, int], ProcessGroup] = field(default_factory=dict)
    """(target rank, drafter rank): what one sends to the other cannot wait behind a third."""

    def sum_over_drafters(self, tensor: Tensor) -> Tensor:
        """Sum in place, on the device; only drafters call it."""
        if self.drafters is not None:
            dist.all_reduce(tensor, group=self.drafters)
        return tensor

    def any_drafter(self, flag: bool) -> bool:  # noqa: FBT001 - the one thing it is about
        """Whether any drafter says so: each gets the same answer. Only drafters call it."""
        if self.drafters_cpu is None:
            return flag
        value = torch.tensor([int(flag)])
        dist.all_reduce(value, op=dist.ReduceOp.MAX, group=self.drafters_cpu)
        return bool(value.item())

    def drafters_barrier(self) -> None:
        """Wait for all drafters, however long: around what the leader alone does."""
        if self.drafters_cpu is not None:
            dist.barrier(group=self.drafters_cpu)

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.control is not None:
            dist.barrier(group=self.control)

    def close(self) -> None:
        """Say good-bye to the backends; after the last barrier."""
        if self.control is not None:
            dist.destroy_process_group()


def open_group(topology: Topology, config: ParallelConfig, device: torch.device) -> Group:
    """Meet the other ranks. Collective: all ranks call it, with a device of the same kind.

    Raises:
        ConfigInvalid: nothing says where to meet.
        torch.distributed.DistError: a rank did not come.
    """
    if topology.is_alone:
        return Group(topology=topology, device=device)
    store = connect(topology, serve=True)
    dist.init_process_group(
        "gloo", store=store, rank=topology.rank, world_size=topology.world_size, timeout=PATIENT
    )
    backend = "nccl" if device.type == "cuda" else "gloo"
    members = list(range(topology.num_drafters))
    # A GPU's host queues a step behind the one that runs, and a collective's time counts from there.
    steps = 2 if backend == "nccl" else 1
    drafters = _subgroup(members, backend, steps * timedelta(seconds=config.timeout_s))
    drafters_cpu = _subgroup(members, "gloo", PATIENT)
    group = Group(
        topology=topology,
        device=device,
        control=dist.group.WORLD,
        drafters=drafters if topology.is_drafter else None,
        drafters_cpu=drafters_cpu if topology.is_drafter else None,
        pairs=_open_pairs(topology, backend, device),
    )
    if topology.is_drafter:
        group.sum_over_drafters(torch.zeros(1, device=device))  # NCCL connects here, not in the first step
    return group


def _open_pairs(
    topology: Topology, backend: str, device: torch.device
) -> dict[tuple[int, int], ProcessGroup]:
    """Make each pair's group, and its connection at once.

    NCCL connects two ranks at their first send and receive, and each waits there for the other. Left to the
    first micro-batch, the drafter would wait before its request is out. All take the pairs in one order.
    """
    pairs: dict[tuple[int, int], ProcessGroup] = {}
    if not topology.is_split:
        return pairs
    targets = [topology.target_rank(index) for index in range(topology.num_targets)]
    for target, drafter in product(targets, range(topology.num_drafters)):
        made = _subgroup([target, drafter], backend, PATIENT, PAIR_CTAS)
        if topology.rank not in (target, drafter):
            continue
        pairs[target, drafter] = made
        greeting = torch.zeros(1, device=device)
        if topology.rank == target:
            dist.send(greeting, drafter, group=made)
        else:
            dist.recv(greeting, target, group=made)
    return pairs


def _subgroup(ranks: list[int], backend: str, timeout: timedelta, max_ctas: int = 0) -> ProcessGroup:
    options = None
    if backend == "nccl" and max_ctas:
        options = dist.ProcessGroupNCCL.Options()
        options.config.max_ctas = max_ctas
        options._timeout = timeout  # noqa: SLF001 - new_group warns if it differs
    made: ProcessGroup = dist.new_group(sorted(ranks), timeout=timeout, backend=backend, pg_options=options)
    return made
