"""Where a drafter's micro-batches come from, by placement. Each is a pure function of its index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from trainer.batch import Batch
    from trainer.data.dataset import Dataset
    from trainer.data.hidden import HiddenCache
    from trainer.parallel.transport import Remote
    from trainer.target.api import Observation, Target


AHEAD = 1  # micro-batches under way while one is trained on: a second would only take memory


class Source(Protocol):
    """Micro-batches with what the target saw in them."""

    def fetch(self, index: int, upcoming: Sequence[int]) -> tuple[Batch, Observation]:
        """Micro-batch `index` on the drafter's device; `upcoming` are those asked for next."""

    def discard(self) -> None:
        """Forget what was asked for ahead: training goes on from another index."""


class LocalSource:
    """`colocated`: this rank's own target runs the batch when it is needed."""

    def __init__(
        self, dataset: Dataset, target: Target, taps: Sequence[int], device: torch.device, *, last: bool
    ) -> None:
        self._dataset, self._target, self._taps, self._device = dataset, target, taps, device
        self._last = last

    def fetch(self, index: int, upcoming: Sequence[int]) -> tuple[Batch, Observation]:
        """Run the target on it now."""
        del upcoming
        batch = self._dataset.micro_batch(index).to(self._device)
        return batch, self._target.observe(batch, self._taps, last=self._last)

    def discard(self) -> None:
        """Nothing is ever ahead."""


class RemoteSource:
    """`split`: a target rank ran it, and sent the hidden states while the one before was trained on."""

    def __init__(self, dataset: Dataset, remote: Remote, device: torch.device) -> None:
        self._dataset, self._remote, self._device = dataset, remote, device

    def fetch(self, index: int, upcoming: Sequence[int]) -> tuple[Batch, Observation]:
        """Ask for it and for the next one, and wait for it."""
        batch = self._dataset.micro_batch(index).to(self._device)
        return batch, self._remote.fetch(index, upcoming[:AHEAD])

    def discard(self) -> None:
        """Take what is under way and drop it."""
        self._remote.discard()


class CachedSource:
    """`cached`: the hidden states of one epoch were written to disk before training, and are read in turn."""

    def __init__(self, dataset: Dataset, cache: HiddenCache, device: torch.device, *, count: int) -> None:
        self._dataset, self._cache, self._device, self._count = dataset, cache, device, count

    def fetch(self, index: int, upcoming: Sequence[int]) -> tuple[Batch, Observation]:
        """Read it; the anchors in it differ from epoch to epoch, the text does not."""
        del upcoming
        place = index % self._count
        observation = self._cache.read(place).to(self._device)
        return self._dataset.micro_batch(place).to(self._device), observation

    def discard(self) -> None:
        """Nothing is ever ahead."""
