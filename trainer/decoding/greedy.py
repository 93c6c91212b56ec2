"""Greedy decoding with a KV cache: the target alone, and with a proposer whose tokens it verifies.

Both run the target in float64 where they are compared. A token alone and a token in a verified block go
through matrix products of different shapes, whose roundings differ; in float64 that is some 1e-13 of a logit,
while the smallest gap between the two best logits, which is measured and reported, is many orders larger. So
the two must agree token for token, and a difference is an error of the program, not a near-tie.

Shapes: M tokens run now, S block tokens, E = taps * D, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainer.errors import DecodeMismatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from trainer.target.api import Session, Target


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens that may follow."""

    tokens: list[int]
    probabilities: Tensor | None = None
    """[len(tokens), V] that each was drawn from, for sampling; None if they were chosen."""


Propose = Callable[[list[int], "Tensor"], Proposal]
"""(tokens so far, taps [M, E] of those that are new since the last call) -> what may follow.

The last token so far has no taps yet: the target has not run it. A proposer belongs to one sequence.
"""


@dataclass(frozen=True, slots=True)
class Decoded:
    """What was decoded after a prompt."""

    tokens: list[int]
    accepted: list[int]
    """Accepted draft tokens of each verification; empty for the target alone."""
    smallest_gap: float
    """Smallest difference between the two best logits at any decoded token; infinite where not measured."""


@torch.no_grad()
def decode_alone(target: Target, prompt: Sequence[int], new_tokens: int, *, exact: bool = True) -> Decoded:
    """The target's own greedy continuation, a token at a time; `exact` in float64."""
    session = target.session((), exact=exact)
    smallest = torch.tensor(float("inf"), dtype=torch.float64, device=target.device)
    run, found = list(prompt), []
    for _ in range(new_tokens):
        logits = session.run(run)[0][-1]
        best = logits.topk(2).values.double()
        smallest = torch.minimum(smallest, best[0] - best[1])
        run = [int(logits.argmax())]
        found += run
    return Decoded(found, [], float(smallest))


@torch.no_grad()
def decode_speculatively(
    target: Target,
    tap_layers: Sequence[int],
    prompt: Sequence[int],
    new_tokens: int,
    propose: Propose,
    *,
    exact: bool = True,
) -> Decoded:
    """The same continuation, with proposals verified a block at a time."""
    session = target.session(tap_layers, exact=exact)
    logits, taps = session.run(prompt)
    tokens, accepted = [*prompt, int(logits[-1].argmax())], []
    while len(tokens) < len(prompt) + new_tokens:
        proposed = propose(tokens, taps).tokens
        verified, taps = verify(session, [tokens[-1], *proposed])
        count = common_prefix(proposed, verified)
        accepted.append(count)
        tokens += verified[: count + 1]
        session.truncate(len(tokens) - 1)
        taps = taps[: count + 1]
    return Decoded(tokens[len(prompt) : len(prompt) + new_tokens], accepted, float("inf"))


def verify(session: Session, tokens: list[int]) -> tuple[list[int], Tensor]:
    """The target's greedy token after each of the tokens, and their taps [M, E]."""
    logits, taps = session.run(tokens)
    greedy: list[int] = logits.argmax(dim=-1).tolist()
    return greedy, taps


def common_prefix(proposed: Sequence[int], verified: Sequence[int]) -> int:
    """Tokens that agree before the first that do not."""
    count = 0
    while count < len(proposed) and proposed[count] == verified[count]:
        count += 1
    return count


def require_same(alone: Decoded, speculative: Decoded, name: str) -> None:
    """Check that speculation changed nothing.

    Raises:
        DecodeMismatch: a token differs.
    """
    for index, (expected, found) in enumerate(zip(alone.tokens, speculative.tokens, strict=True)):
        if expected != found:
            raise DecodeMismatch(
                f"decoding with {name}: token {index} is {found}, the target's own is {expected} (smallest "
                f"gap of its two best logits: {alone.smallest_gap:.2e}); this is a defect, please report it"
            )


def propose_by_lookup(size: int, count: int) -> Propose:
    """Propose what followed the newest earlier occurrence of the last `size` tokens, if there is one."""

    def propose(tokens: list[int], _: Tensor) -> Proposal:
        return Proposal(lookup(tokens, size, count))

    return propose


def lookup(tokens: Sequence[int], size: int, count: int) -> list[int]:
    """Up to `count` tokens that followed the newest earlier occurrence of the last `size` ones."""
    ending = list(tokens[-size:])
    for start in range(len(tokens) - size - 1, -1, -1):
        if list(tokens[start : start + size]) == ending:
            return list(tokens[start + size : start + size + count])
    return []
