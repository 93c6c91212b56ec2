"""Which micro-batch is made where: a pure function of the step, so that it resumes exactly.

A step is the same micro-batches on any number of ranks; only who computes them differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer.errors import ConfigInvalid

if TYPE_CHECKING:
    from trainer.config import OptimConfig
    from trainer.parallel.topology import Topology


@dataclass(frozen=True, slots=True)
class Schedule:
    """N micro-batches a step, dealt out to D drafters, made by T targets."""

    per_step: int
    num_drafters: int
    num_targets: int

    def of_step(self, step: int) -> range:
        """All micro-batches of a step (0-based): s*N to s*N + N-1."""
        return range(step * self.per_step, (step + 1) * self.per_step)

    def of_drafter(self, step: int, drafter_index: int) -> range:
        """Those of a step that a drafter takes, in its order: every m with m % D == d."""
        return self.of_step(step)[drafter_index :: self.num_drafters]

    def target_of(self, micro_batch: int) -> int:
        """The index of the target that makes it: m % T."""
        return micro_batch % self.num_targets

    def ahead(self, micro_batch: int, count: int, end_step: int) -> range:
        """The next up to `count` of the same drafter, before step `end_step` begins."""
        first = micro_batch + self.num_drafters
        last = min(first + count * self.num_drafters, end_step * self.per_step)
        return range(first, last, self.num_drafters)


def make_schedule(topology: Topology, config: OptimConfig) -> Schedule:
    """Take optim.micro_batches, or one a drafter.

    Raises:
        ConfigInvalid: it is not a multiple of the number of drafters.
    """
    drafters = topology.num_drafters
    per_step = config.micro_batches or drafters
    if per_step % drafters:
        near = per_step // drafters * drafters
        raise ConfigInvalid(
            f"optim.micro_batches: {per_step} is not a multiple of the {drafters} drafters; allowed: "
            f"{' or '.join(str(n) for n in (near, near + drafters) if n)}, or 0 for {drafters}"
        )
    return Schedule(per_step, drafters, topology.num_targets)
