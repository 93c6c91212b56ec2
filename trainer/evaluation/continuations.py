"""Held-out prompts decoded by the target, and proposers held against what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer.decoding.draftsession import propose_by_drafter, sample_by_drafter
from trainer.decoding.greedy import decode_alone, decode_speculatively, propose_by_lookup, require_same
from trainer.decoding.sampling import sample_speculatively
from trainer.evaluation.acceptance import LOOKUP_SIZE
from trainer.seeds import generator

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer.data.dataset import HeldOut
    from trainer.decoding.greedy import Decoded, Propose
    from trainer.drafting import Drafting
    from trainer.target.api import Target, TargetShape

DISTINCT_SIZE = 16
EXACT_LIMIT_BYTES = 8 << 30
"""A target is decoded in float64, and the tokens required to be the same, if its copy takes no more."""


def can_be_exact(shape: TargetShape) -> bool:
    """Whether a float64 copy is small enough to be made: weights of a dense model of this shape."""
    width = shape.hidden_size
    heads = (2 * shape.num_attention_heads + 2 * shape.num_key_value_heads) * shape.head_dim
    layer = width * (heads + 3 * shape.intermediate_size)
    return 8 * (shape.num_hidden_layers * layer + 2 * shape.vocab_size * width) <= EXACT_LIMIT_BYTES


class Decoding:
    """The target's own continuations of held-out prompts, and proposers held against them."""

    def __init__(
        self, drafting: Drafting, target: Target, held_out: HeldOut, beat: Callable[[], None]
    ) -> None:
        config = drafting.config.eval
        self._drafting, self._target, self._beat = drafting, target, beat
        self._new_tokens = config.new_tokens
        self._exact = can_be_exact(target.shape)
        self._same: list[bool] = []
        self.prompts = held_out.prompts(config.prompts, config.prompt_tokens) if config.prompts else []
        self._pairs: list[tuple[list[int], Decoded]] = []
        for prompt in self.prompts:
            alone = decode_alone(target, prompt, self._new_tokens, exact=self._exact)
            self._pairs.append((prompt, alone))
            beat()

    def figures(self) -> dict[str, Any]:
        """What the continuations are like, and the acceptance lengths of the drafter and the look-up."""
        grams = [
            tuple(alone.tokens[start : start + DISTINCT_SIZE])
            for _, alone in self._pairs
            for start in range(max(0, len(alone.tokens) - DISTINCT_SIZE + 1))
        ]
        count = self._drafting.config.draft.block_size - 1
        drafter = self.measure("the drafter")
        same = sum(self._same) / len(self._same)
        return {
            "drafter": drafter,
            "lookup": self.measure("the look-up", lambda: propose_by_lookup(LOOKUP_SIZE, count)),
            "prompts": len(self._pairs),
            "new_tokens": self._new_tokens,
            "exact": self._exact,
            "same_tokens": same,
            "distinct_16grams": len(set(grams)) / max(1, len(grams)),
            "smallest_gap": min(alone.smallest_gap for _, alone in self._pairs),
        }

    def measure(self, name: str, begin: Callable[[], Propose] | None = None) -> float:
        """Mean accepted length of a proposer, the drafter if none is given.

        Raises:
            DecodeMismatch: it changed a token of an exact decoding.
        """
        accepted: list[int] = []
        for prompt, alone in self._pairs:
            propose = begin() if begin else propose_by_drafter(self._drafting)
            speculative = decode_speculatively(
                self._target, self._drafting.tap_layers, prompt, self._new_tokens, propose, exact=self._exact
            )
            self._same.append(speculative.tokens == alone.tokens)
            if self._exact:
                require_same(alone, speculative, name)
            accepted += speculative.accepted
            self._beat()
        return sum(accepted) / max(1, len(accepted))

    def measure_sampling(self, temperature: float) -> float:
        """Mean accepted length of the drafter where both draw their tokens."""
        accepted: list[int] = []
        for index, (prompt, _) in enumerate(self._pairs):
            drawn_by = generator(self._drafting.config.seed, "sampling", index)
            propose = sample_by_drafter(self._drafting, temperature, drawn_by)
            accepted += sample_speculatively(
                self._target,
                self._drafting.tap_layers,
                prompt,
                self._new_tokens,
                propose,
                temperature=temperature,
                generator=drawn_by,
            ).accepted
            self._beat()
        return sum(accepted) / max(1, len(accepted))
