"""Where a drafter's micro-batches come from, by placement. Each is a pure function of its index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from trainer.ahead import Ahead

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

    def close(self) -> None:
        """Read no more: at the end, however it comes."""

    @property
    def waited_s(self) -> float:
        """How long `fetch` has waited, in all, for what is read from disk; not for another rank's work."""


class _Reading:
    """The documents of a micro-batch are read and packed while the one before is trained on."""

    def __init__(self, dataset: Dataset, device: torch.device) -> None:
        self._device = device
        self._ahead = Ahead(dataset.micro_batch)

    def _batch(self, index: int, upcoming: Sequence[int]) -> Batch:
        return self._ahead.take(index, upcoming[:AHEAD]).to(self._device)

    def discard(self) -> None:
        """Forget what was asked for ahead."""
        self._ahead.discard()

    def close(self) -> None:
        """Read no more."""
        self._ahead.close()

    @property
    def waited_s(self) -> float:
        """How long documents were waited for."""
        return self._ahead.waited_s


class LocalSource(_Reading):
    """`colocated`: this rank's own target runs the batch when it is needed."""

    def __init__(
        self, dataset: Dataset, target: Target, taps: Sequence[int], device: torch.device, *, last: bool
    ) -> None:
        super().__init__(dataset, device)
        self._target, self._taps, self._last = target, taps, last

    def fetch(self, index: int, upcoming: Sequence[int]) -> tuple[Batch, Observation]:
        """Run the target on it now."""
        batch = self._batch(index, upcoming)
        return batch, self._target.observe(batch, self._taps, last=self._last)


class RemoteSource(_Reading):
    """`split`: a target rank ran it, and sent the hidden states while the one before was trained on."""

    def __init__(self, dataset: Dataset, remote: Remote, device: torch.device) -> None:
        super().__init__(dataset, device)
        self._remote = remote

    def fetch(self, index: int, upcoming: Sequence[int]) -> tuple[Batch, Observation]:
        """Ask for it and for the next one, and wait for it."""
        observation = self._remote.fetch(index, upcoming[:AHEAD])
        return self._batch(index, upcoming), observation

    def discard(self) -> None:
        """Take what is under way and drop it."""
        super().discard()
        self._remote.discard()


class CachedSource(_Reading):
    """`cached`: the hidden states of one epoch were written to disk before training, and are read in turn.

    The next micro-batch's are read and checked while this one is trained on, in the host's memory alone.
    """

    def __init__(self, dataset: Dataset, cache: HiddenCache, device: torch.device, *, count: int) -> None:
        super().__init__(dataset, device)
        self._cache, self._count = cache, count
        self._hidden = Ahead(self._read)

    def fetch(self, index: int, upcoming: Sequence[int]) -> tuple[Batch, Observation]:
        """Read it; the anchors in it differ from epoch to epoch, the text does not."""
        place, *following = (each % self._count for each in (index, *upcoming[:AHEAD]))
        observation = self._hidden.take(place, following).to(self._device)
        return self._batch(place, following), observation

    def discard(self) -> None:
        """Forget what was asked for ahead."""
        super().discard()
        self._hidden.discard()

    def close(self) -> None:
        """Read no more."""
        self._hidden.close()
        super().close()

    @property
    def waited_s(self) -> float:
        """How long documents and hidden states were waited for."""
        return super().waited_s + self._hidden.waited_s

    def _read(self, place: int) -> Observation:
        observation = self._cache.read(place)
        return observation.pinned() if self._device.type == "cuda" else observation
