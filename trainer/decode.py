"""Greedy decoding with a KV cache: the target alone, and with a proposer whose tokens it verifies.

Both run the target in float64. A token alone and a token in a verified block go through matrix products of
different shapes, whose roundings differ; in float64 that is some 1e-13 of a logit, while the smallest gap
between the two best logits, which is measured and reported, is many orders larger. So the two must agree
token for token, and a difference is an error of the program, not a near-tie.

Shapes: T tokens so far, M tokens run now, E = taps * D.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trainer.errors import DecodeMismatch

if TYPE_CHECKING:
    from trainer.drafting import Drafting
    from trainer.target import Cache, TargetModel

Propose = Callable[[list[int], Tensor], list[int]]
"""(tokens so far, taps [T-1, E] of all but the last of them) -> tokens that may follow."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """What was decoded after a prompt."""

    tokens: list[int]
    accepted: list[int]
    """Accepted draft tokens of each verification; empty for the target alone."""
    smallest_gap: float
    """Smallest difference between the two best logits at any decoded token."""


class Verifier:
    """The target in float64 and its cache, for one sequence."""

    def __init__(self, target: TargetModel, tap_layers: tuple[int, ...]) -> None:
        self._target = target
        self._tap_layers = tap_layers
        self._cache: Cache | None = None
        self._taps: list[Tensor] = []

    @property
    def length(self) -> int:
        """Tokens whose keys are in the cache."""
        return 0 if self._cache is None else self._cache[0][0].shape[2]

    @property
    def taps(self) -> Tensor:
        """Taps [T, E] of the cached tokens, in float32."""
        return torch.cat(self._taps).float()

    def extend(self, tokens: list[int]) -> Tensor:
        """Logits [M, V] after each of the tokens, which come after all cached ones and are cached now."""
        positions = torch.arange(self.length, self.length + len(tokens))
        mask = torch.arange(self.length + len(tokens)) <= positions[:, None]
        output = self._target(
            torch.tensor([tokens]),
            positions_BT=positions[None],
            mask_B1TK=mask[None, None],
            past=self._cache,
            tap_layers=self._tap_layers,
        )
        self._cache = output.cache
        self._taps.append(output.taps[0])
        logits: Tensor = output.logits[0]
        return logits

    def forget_after(self, length: int) -> None:
        """Drop what was cached beyond the first `length` tokens."""
        assert self._cache is not None
        self._cache = [(keys[:, :, :length], values[:, :, :length]) for keys, values in self._cache]
        self._taps = [torch.cat(self._taps)[:length]]


def in_float64(target: TargetModel) -> TargetModel:
    """A copy of the target for decoding."""
    return copy.deepcopy(target).double()


@torch.no_grad()
def decode_alone(target64: TargetModel, prompt: list[int], new_tokens: int) -> Decoded:
    """The target's own greedy continuation, a token at a time."""
    verifier = Verifier(target64, ())
    tokens, smallest_gap = list(prompt), float("inf")
    run = prompt
    for _ in range(new_tokens):
        best = verifier.extend(run)[-1].topk(2)
        smallest_gap = min(smallest_gap, float(best.values[0] - best.values[1]))
        run = [int(best.indices[0])]
        tokens += run
    return Decoded(tokens[len(prompt) :], [], smallest_gap)


@torch.no_grad()
def decode_speculatively(
    target64: TargetModel,
    tap_layers: tuple[int, ...],
    prompt: list[int],
    new_tokens: int,
    propose: Propose,
) -> Decoded:
    """The same continuation, with proposals verified a block at a time."""
    verifier = Verifier(target64, tap_layers)
    first = int(verifier.extend(prompt)[-1].argmax())
    tokens, accepted = [*prompt, first], []
    while len(tokens) < len(prompt) + new_tokens:
        proposed = propose(tokens, verifier.taps)
        verified = verifier.extend([tokens[-1], *proposed]).argmax(dim=-1).tolist()
        count = 0
        while count < len(proposed) and proposed[count] == verified[count]:
            count += 1
        accepted.append(count)
        tokens += verified[: count + 1]
        verifier.forget_after(len(tokens) - 1)
    return Decoded(tokens[len(prompt) : len(prompt) + new_tokens], accepted, float("inf"))


def require_same(alone: Decoded, speculative: Decoded, name: str) -> None:
    """Check that speculation changed nothing.

    Raises:
        DecodeMismatch: a token differs.
    """
    pairs = zip(alone.tokens, speculative.tokens, strict=True)
    for index, (expected, found) in enumerate(pairs):
        if expected != found:
            raise DecodeMismatch(
                f"decoding with {name}: token {index} is {found}, the target's own is {expected} (smallest "
                f"gap of its two best logits: {alone.smallest_gap:.2e}); this is a defect, please report it"
            )


def propose_by_drafter(drafting: Drafting) -> Propose:
    """Propose with the drafter, in the constant shape of one window with one anchor."""

    def propose(tokens: list[int], taps_TE: Tensor) -> list[int]:
        window = drafting.config.data.context_tokens
        tokens_1T = torch.zeros(1, window, dtype=torch.long)
        tokens_1T[0, : len(tokens)] = torch.tensor(tokens)
        taps_1TE = torch.zeros(1, window, taps_TE.shape[1])
        taps_1TE[0, : len(taps_TE)] = taps_TE
        drafted = drafting.propose(tokens_1T, taps_1TE, torch.tensor([[len(tokens) - 1]]))
        return [int(token) for token in drafted[0, 0]]

    return propose


def propose_by_lookup(size: int, count: int) -> Propose:
    """Propose what followed the newest earlier occurrence of the last `size` tokens, if there is one."""

    def propose(tokens: list[int], _: Tensor) -> list[int]:
        return lookup(tokens, size, count)

    return propose


def lookup(tokens: list[int], size: int, count: int) -> list[int]:
    """Up to `count` tokens that followed the newest earlier occurrence of the last `size` ones."""
    ending = tokens[-size:]
    for start in range(len(tokens) - size - 1, -1, -1):
        if tokens[start : start + size] == ending:
            return tokens[start + size : start + size + count]
    return []
