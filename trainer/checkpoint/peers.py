"""The drafter ranks, as far as checkpoints need them: they agree on what was done and on what went wrong.

They have a gloo group of their own: a save in flight talks from a thread, and a group's collectives must not
be mixed between threads. With one rank nothing of torch.distributed is used.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
FAILURES = (OSError, RuntimeError, ValueError, CheckpointException)


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong on a rank, in a form that travels."""

    rank: int
    errno: int
    text: str


class Peers:
    """The ranks of `group`, all of which must make the same calls in the same order. None is one alone."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.rank, self.size = 0, 1
        self.group: dist.ProcessGroup | None = None
        if group is not None and dist.get_world_size(group) > 1:
            ranks = dist.get_process_group_ranks(group)
            self.rank, self.size = dist.get_rank(group), len(ranks)
            self.group = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)

    @property
    def leader(self) -> bool:
        """Whether this is the rank that names, removes and decides."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """Everyone's value, in rank order."""
        if self.group is None:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def together(self, act: Callable[[], T]) -> list[T]:
        """Act on each rank; everyone's result, in rank order.

        Raises:
            OSError: on all ranks alike, if it went wrong on any; the first one's number and words.
        """
        outcome: T | Failure
        try:
            outcome = act()
        except FAILURES as error:
            outcome = failure(self.rank, error)
        outcomes = self.gather(outcome)
        for found in outcomes:
            if isinstance(found, Failure):
                whose = f" (drafter rank {found.rank})" if self.size > 1 else ""
                raise OSError(found.errno, found.text + whose)
        return [value for value in outcomes if not isinstance(value, Failure)]

    def led(self, act: Callable[[], T]) -> T:
        """Act on the leader alone; its result on every rank.

        Raises:
            OSError: on all ranks alike, if it went wrong.
        """
        return cast("T", self.together(lambda: act() if self.leader else None)[0])


def failure(rank: int, error: BaseException) -> Failure:
    """The innermost operating system error, if there is one, else the error's own words."""
    if isinstance(error, CheckpointException) and error.failures:
        rank, (inner, _) = next(iter(error.failures.items()))
        return failure(rank, inner)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            place = f": {cause.filename}" if cause.filename else ""
            return Failure(rank, cause.errno, f"{cause.strerror}{place}")
        cause = cause.__cause__ or cause.__context__
    return Failure(rank, errno.EIO, f"{type(error).__name__}: {error}".splitlines()[0])
