"""A training step of ours, and one round a peer's model and loss.

Peers compute in the type of their weights, bfloat16 on a GPU, under PyTorch's fused AdamW and a clipped norm;
ours is `trainer_step`'s.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from benchmarks.trainer_step import train_step as our_step
from trainer import drafting
from trainer.compiling.warmup import compiled
from trainer.flash import require_flash
from trainer.model import DraftLayer, use_layer_call
from trainer.optim import make_optimizer
from trainer.target.api import Observation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.step_given import Given


class Side(Protocol):
    """A trainer at work."""

    def step(self, index: int) -> Tensor:
        """Train one step and give its loss, nothing waited for."""

    def pinned(self) -> contextlib.AbstractContextManager[None]:
        """While open, the given anchors are taken in place of drawn ones."""


class Ours:
    """This trainer."""

    def __init__(self, given: Given) -> None:
        draft = given.draft()
        if given.config.compute.attention == "flash":
            require_flash(given.device, given.dtype, given.dims.head_dim)
        if given.device.type == "cuda":
            use_layer_call(draft, compiled(DraftLayer.plain, "inductor"))
        self._drafting = drafting.Drafting(
            given.config, given.shape, draft, given, given.mask_token, given.dtype
        )
        self._optimizer = make_optimizer(draft, given.config.optim)
        self._given = given

    def step(self, index: int) -> Tensor:
        """As in a run, at the index's learning rate and with its anchors."""
        observation = Observation(self._given.taps, None)
        return our_step(self._drafting, self._optimizer, self._given.batch, observation, index)

    def pinned(self) -> contextlib.AbstractContextManager[None]:
        """Where `drafting` looks the sampler up."""
        return _replaced(drafting, "sample_anchors", lambda *_: self._given.anchors)


@dataclass(frozen=True, slots=True)
class Peer:
    """What differs between the others."""

    draft: nn.Module
    loss: Callable[[], Tensor]
    sampler: tuple[object, str, Callable[..., object]]
    """Whose attribute draws anchors, and what gives the pinned ones in its place."""
    optimizer: torch.optim.Optimizer
    loss_factor: float = 1.0
    """From its loss to ours, where every block is whole."""

    def step(self, index: int) -> Tensor:  # noqa: ARG002 - as Side has it
        """Forward, backward, clip, AdamW."""
        loss = self.loss()
        loss.backward()
        nn.utils.clip_grad_norm_(self.draft.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach() * self.loss_factor

    def pinned(self) -> contextlib.AbstractContextManager[None]:
        """In place of its own sampler."""
        return _replaced(*self.sampler)


@contextlib.contextmanager
def _replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """`owner` with another attribute, for as long as this is open."""
    before, own = getattr(owner, name), name in vars(owner)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
