"""Which rank does what. Nothing here imports torch: the launcher asks before any rank is started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainer.config import ParallelConfig

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """One rank's place. In a split, ranks 0 to D-1 are drafters, the rest targets; else each is both."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node: int = 0
    placement: str = "colocated"
    num_targets: int = 1
    num_drafters: int = 1

    @property
    def is_leader(self) -> bool:
        """Whether this rank prints, writes the heartbeat and decides: rank 0, always a drafter."""
        return self.rank == 0

    @property
    def is_drafter(self) -> bool:
        """Whether this rank trains."""
        return self.rank < self.num_drafters

    @property
    def is_target(self) -> bool:
        """Whether this rank runs the target."""
        return not self.is_split or self.rank >= self.num_drafters

    @property
    def is_split(self) -> bool:
        """Whether hidden states come from other ranks."""
        return self.placement == "split"

    @property
    def is_alone(self) -> bool:
        """Whether there is nobody to talk to."""
        return self.world_size == 1

    @property
    def drafter_index(self) -> int:
        """0 to D-1; only of a drafter."""
        return self.rank

    @property
    def target_index(self) -> int:
        """0 to T-1; only of a target."""
        return self.rank - self.num_drafters if self.is_split else self.rank

    @property
    def role(self) -> str:
        """`drafter` or `target`, for messages."""
        return self.role_of(self.rank)

    def role_of(self, rank: int) -> str:
        """What another rank is called in messages."""
        return "drafter" if rank < self.num_drafters else "target"

    def target_rank(self, target_index: int) -> int:
        """The rank of a target."""
        return self.num_drafters + target_index if self.is_split else target_index


def read_topology(environ: Mapping[str, str], config: ParallelConfig) -> Topology:
    """Take this rank's place from torchrun's variables; without them it is alone.

    Raises:
        ConfigInvalid: a variable is not a number, or the targets leave no drafter.
    """
    rank, world_size, local_rank, local_world_size, node = (_number(environ, name) for name in NAMES)
    return place(
        config,
        world_size=world_size,
        rank=rank,
        local_rank=local_rank,
        local_world_size=local_world_size,
        node=node,
    )


def place(
    config: ParallelConfig,
    *,
    world_size: int,
    rank: int = 0,
    local_rank: int = 0,
    local_world_size: int = 1,
    node: int = 0,
) -> Topology:
    """Give each of `world_size` ranks its role.

    Raises:
        ConfigInvalid: the targets of a split leave no drafter, or there are none.
    """
    num_targets = num_drafters = world_size
    if config.placement == "split":
        num_targets, num_drafters = config.targets, world_size - config.targets
        if num_targets < 1 or num_drafters < 1:
            some = f"1 to {world_size - 1}" if world_size > 1 else "1 or more, fewer than parallel.processes"
            raise ConfigInvalid(
                f"parallel.targets: {config.targets} of {world_size} processes leaves "
                f"{max(num_drafters, 0)} drafters; allowed for placement = split: {some}, with at least 2 "
                "processes"
            )
    return Topology(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        node=node,
        placement=config.placement,
        num_targets=num_targets,
        num_drafters=num_drafters,
    )


def is_rank(environ: Mapping[str, str]) -> bool:
    """Whether a launcher, ours or torchrun, started this process as one of its ranks."""
    return "RANK" in environ and "WORLD_SIZE" in environ


def _number(environ: Mapping[str, str], name: str) -> int:
    default = "1" if name.endswith("SIZE") else "0"
    if name.startswith("LOCAL_") and name not in environ:  # srun and mpirun set only the global ones
        name, default = ("WORLD_SIZE", "1") if name.endswith("SIZE") else ("RANK", "0")
    text = environ.get(name, default)
    if not text.isdecimal():
        raise ConfigInvalid(f"{name}: {text!r} is not a number; torchrun sets it, or leave it out")
    return int(text)
