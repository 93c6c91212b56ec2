"""Decoding speed by the wall clock: the target's greedy decoding, and the same with the drafter."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch

from trainer.decoding.draftsession import in_compute_type
from trainer.decoding.fixed import Alone, Together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer.decoding.greedy import Decoded
    from trainer.drafting import Drafting
    from trainer.target.own import TargetModel


@dataclass(frozen=True, slots=True)
class Speed:
    """Both ways on the same prompts, one sequence at a time, in the compute dtype, CUDA graphs on a GPU."""

    tokens: int
    """Decoded tokens, of each way."""
    alone_tokens_per_s: float
    speculative_tokens_per_s: float
    accepted: float
    """Mean accepted draft tokens a verification."""
    same_tokens: float
    """Share of prompts whose tokens are the same both ways: in a short type a near-tie may fall otherwise."""

    @property
    def speed_up(self) -> float:
        """How many times as fast the drafter makes it."""
        return self.speculative_tokens_per_s / self.alone_tokens_per_s

    def as_json(self) -> dict[str, float]:
        """With the ratio."""
        return {**asdict(self), "speed_up": self.speed_up}


def measure_speed(
    drafting: Drafting, target: TargetModel, prompts: Sequence[Sequence[int]], new_tokens: int
) -> Speed:
    """Decode each prompt both ways; the first prompt is decoded once before, as warm-up.

    The prompt's own run counts for both. Both keep KV caches of fixed size.
    """
    limit = max(len(prompt) for prompt in prompts) + new_tokens
    alone = Alone(target, limit)
    together = Together(in_compute_type(drafting), target, limit)
    for way in (alone, together):
        way.decode(prompts[0], new_tokens)
    plain, plain_s = _timed(alone, prompts, new_tokens, target.device)
    speculative, speculative_s = _timed(together, prompts, new_tokens, target.device)
    count = len(prompts) * new_tokens
    lengths = [length for decoded in speculative for length in decoded.accepted]
    pairs = list(zip(plain, speculative, strict=True))
    return Speed(
        tokens=count,
        alone_tokens_per_s=count / plain_s,
        speculative_tokens_per_s=count / speculative_s,
        accepted=sum(lengths) / max(1, len(lengths)),
        same_tokens=sum(one.tokens == other.tokens for one, other in pairs) / len(pairs),
    )


def _timed(
    way: Alone, prompts: Sequence[Sequence[int]], new_tokens: int, device: torch.device
) -> tuple[list[Decoded], float]:
    _wait(device)
    started = time.perf_counter()
    decoded = [way.decode(prompt, new_tokens) for prompt in prompts]
    _wait(device)
    return decoded, time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
