"""What the trainer asks of a target, whatever model it is.

Shapes: R rows, T tokens, M tokens run now, D model dim, E = taps * D, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor

    from trainer.batch import Batch


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetShape:
    """What a drafter takes from its target: the config.json keys of Qwen3."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class Observation:
    """What the drafter learns from. Zeros in padding."""

    taps: Tensor
    """[R, T, E] hidden states after each tapped layer, side by side."""
    last: Tensor | None
    """[R, T, D] what goes into the head, if it was asked for."""

    def to(self, device: torch.device | str) -> Observation:
        """The same on another device."""
        last = None if self.last is None else self.last.to(device, non_blocking=True)
        return Observation(self.taps.to(device, non_blocking=True), last)

    def pinned(self) -> Observation:
        """The same in memory that a GPU can copy from at once."""
        return Observation(self.taps.pin_memory(), None if self.last is None else self.last.pin_memory())


class Vocabulary(Protocol):
    """The target's frozen embedding and head, which the drafter shares."""

    @property
    def embedding(self) -> Tensor:
        """[V, D]."""

    @property
    def head(self) -> Tensor:
        """[V, D]; logits are hidden @ head.T."""


class Session(Protocol):
    """One sequence under decoding, with a cache of what was run."""

    @property
    def length(self) -> int:
        """Tokens in the cache."""

    def run(self, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Append tokens; logits [M, V] for the token after each, and taps [M, E]."""

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""


class Target(Vocabulary, Protocol):
    """A frozen causal language model on one device."""

    @property
    def shape(self) -> TargetShape:
        """Its dimensions."""

    @property
    def device(self) -> torch.device:
        """Where it is."""

    def observe(self, batch: Batch, tap_layers: Sequence[int], *, last: bool) -> Observation:
        """Run documents, none of which sees another. `tap_layers` are 0-based, "after layer i"."""

    def session(self, tap_layers: Sequence[int], *, exact: bool = False) -> Session:
        """Begin a sequence; `exact` runs in float64, where rounding cannot change a greedy token."""
