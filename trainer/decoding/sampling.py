"""Speculative sampling: what comes out is distributed as if the target had drawn every token itself.

The rule is that of Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", algorithm
1: keep a drafted token x with probability min(1, p(x) / q(x)), p the target's distribution and q the one that
x was drawn from; in the place of the first that is not kept, draw from max(0, p - q), normalised; and if all
are kept, one more from p. Probabilities are float64, and drawn on the CPU by the generator given.

Shapes: M drafted tokens, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trainer.decoding.greedy import Decoded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from trainer.decoding.greedy import Propose
    from trainer.target.api import Target


@torch.no_grad()
def sample_speculatively(
    target: Target,
    tap_layers: Sequence[int],
    prompt: Sequence[int],
    new_tokens: int,
    propose: Propose,
    *,
    temperature: float,
    generator: torch.Generator,
    exact: bool = False,
) -> Decoded:
    """A continuation of the same distribution, with proposals verified a block at a time."""
    session = target.session(tap_layers, exact=exact)
    logits, taps = session.run(prompt)
    tokens = [*prompt, _draw(probabilities(logits[-1], temperature), generator)]
    accepted: list[int] = []
    while len(tokens) < len(prompt) + new_tokens:
        proposed = propose(tokens, taps)
        logits, taps = session.run([tokens[-1], *proposed.tokens])
        count, following = accept(
            proposed.tokens, proposed.probabilities, probabilities(logits, temperature), generator
        )
        accepted.append(count)
        tokens += [*proposed.tokens[:count], following]
        session.truncate(len(tokens) - 1)
        taps = taps[: count + 1]
    return Decoded(tokens[len(prompt) : len(prompt) + new_tokens], accepted, float("nan"))


def accept(
    drafted: Sequence[int],
    drafter_MV: Tensor | None,
    target_MV: Tensor,
    generator: torch.Generator,
) -> tuple[int, int]:
    """How many of the drafted tokens are kept, and the token that follows those.

    `target_MV` has a row more than was drafted. `drafter_MV` is None for tokens that were chosen, not drawn:
    each is then all of its distribution.
    """
    for index, token in enumerate(drafted):
        p_V = target_MV[index]
        q_V = _one_hot(token, p_V) if drafter_MV is None else drafter_MV[index]
        chance = torch.rand((), dtype=torch.float64, generator=generator)
        # Not p / q: a token is never drawn where q is 0, but a caller's look-up may say so.
        if chance * q_V[token] >= p_V[token]:
            return index, _draw((p_V - q_V).clamp(min=0), generator)
    return len(drafted), _draw(target_MV[len(drafted)], generator)


def probabilities(logits: Tensor, temperature: float) -> Tensor:
    """softmax(logits / temperature) in float64 on the CPU, where it is drawn from."""
    return (logits.double().cpu() / temperature).softmax(dim=-1)


def _one_hot(token: int, like_V: Tensor) -> Tensor:
    hot = torch.zeros_like(like_V)
    hot[token] = 1
    return hot


def _draw(weights_V: Tensor, generator: torch.Generator) -> int:
    return int(torch.multinomial(weights_V, 1, generator=generator))
