"""How many drafted tokens the target accepts, beside two proposers that learned nothing.

The acceptance length is the mean number of accepted draft tokens a verification; the token that the target
adds itself is not counted, so tokens per target call are one more.

Shapes: B batch, T context tokens, A anchor slots, S block tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from trainer.attention import draft_mask
from trainer.blocks import spread_anchors
from trainer.decode import (
    Propose,
    decode_alone,
    decode_speculatively,
    in_float64,
    lookup,
    propose_by_drafter,
    propose_by_lookup,
    require_same,
)
from trainer.drafting import begin_draft
from trainer.loss import accepted_lengths

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.data import Windows
    from trainer.drafting import Drafting
    from trainer.target import TargetOutput

LOOKUP_SIZE = 4
DISTINCT_SIZE = 16
NOTHING = -1  # no token: a look-up without an answer proposes what is never accepted

BatchPropose = Callable[["Tensor", "TargetOutput", "Tensor"], "Tensor"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The figures of `result.json`."""

    teacher_forced: dict[str, float]
    decoded: dict[str, Any] | None

    @property
    def acceptance_length(self) -> float:
        """The headline: the drafter's, teacher-forced on held-out files."""
        return self.teacher_forced["drafter"]

    def as_json(self) -> dict[str, Any]:
        """With the definition beside the figures."""
        return {
            "unit": "accepted draft tokens a verification, the target's own token not counted",
            "teacher_forced": self.teacher_forced,
            "decoded": self.decoded,
        }

    def lines(self) -> list[str]:
        """For the log."""
        forced = _compare(self.teacher_forced)
        lines = [f"acceptance length, teacher-forced on held-out files: {forced}"]
        lines.append(f"with the target's own token: {1 + self.acceptance_length:.2f} tokens a target call")
        if self.decoded is not None:
            told = self.decoded
            lines.append(f"acceptance length, greedy decoding: {_compare(told)}")
            lines.append(
                f"decoded {told['prompts']} prompts x {told['new_tokens']} tokens, identical to the target's "
                f"own; distinct {DISTINCT_SIZE}-grams {told['distinct_16grams']:.2f}; "
                f"smallest gap of the two best logits {told['smallest_gap']:.1e}"
            )
        return lines


def _compare(figures: dict[str, Any]) -> str:
    return (
        f"drafter {figures['drafter']:.2f}, untrained drafter {figures['untrained']:.2f}, "
        f"{LOOKUP_SIZE}-gram look-up {figures['lookup']:.2f}"
    )


def evaluate(drafting: Drafting, held_out: Windows, beat: Callable[[], None]) -> Evaluation:
    """Measure the drafter, itself untrained, and the look-up, on held-out files.

    `beat` is called as it goes.
    """
    rounded = -(-drafting.config.eval.windows // drafting.config.data.batch_rows)
    windows = held_out.spread(rounded * drafting.config.data.batch_rows)
    trained = {name: value.clone() for name, value in drafting.draft.state_dict().items()}
    size = drafting.config.draft.block_size
    forced = {"drafter": teacher_forced_drafter(drafting, windows, beat)}
    forced["lookup"] = teacher_forced(drafting, windows, _by_lookup(size - 1), beat)
    decoding = _Decoding(drafting, held_out, beat) if drafting.config.eval.prompts else None
    decoded: dict[str, Any] | None = None
    if decoding is not None:
        decoded = decoding.figures()
        decoded["drafter"] = decoding.measure("the drafter", propose_by_drafter(drafting))
        decoded["lookup"] = decoding.measure("the look-up", propose_by_lookup(LOOKUP_SIZE, size - 1))
    # The untrained drafter goes through the same compiled calls, so that it measures the weights alone.
    drafting.draft.load_state_dict(begin_draft(drafting.config, drafting.target).state_dict())
    forced["untrained"] = teacher_forced_drafter(drafting, windows, beat)
    if decoding is not None and decoded is not None:
        decoded["untrained"] = decoding.measure("the untrained drafter", propose_by_drafter(drafting))
    drafting.draft.load_state_dict(trained)
    return Evaluation(forced, decoded)


def teacher_forced_drafter(drafting: Drafting, windows: Tensor, beat: Callable[[], None]) -> float:
    """The drafter's own teacher-forced acceptance length on these windows."""
    return teacher_forced(drafting, windows, _by_drafter(drafting), beat)


@torch.no_grad()
def teacher_forced(
    drafting: Drafting, windows: Tensor, propose: BatchPropose, beat: Callable[[], None]
) -> float:
    """Mean accepted length over verifications whose context is the files' own text.

    After each anchor the target really verifies the proposal: its greedy token at every offset, given the
    text up to the anchor and the proposal before that offset.
    """
    config = drafting.config
    lengths: list[Tensor] = []
    for tokens_BT in windows.split(config.data.batch_rows):
        output = drafting.target(tokens_BT, tap_layers=drafting.tap_layers)
        anchors, keep = spread_anchors(
            len(tokens_BT), config.data.context_tokens, config.data.anchors, config.draft.block_size
        )
        proposed_BAS = propose(tokens_BT, output, anchors)
        verified_BAS = _verify(drafting, tokens_BT, output, anchors, keep, proposed_BAS)
        lengths.append(accepted_lengths(proposed_BAS, verified_BAS).flatten())
        beat()
    return float(torch.cat(lengths).double().mean())


def _verify(
    drafting: Drafting,
    tokens_BT: Tensor,
    output: TargetOutput,
    anchors_BA: Tensor,
    keep_BA: Tensor,
    proposed_BAS: Tensor,
) -> Tensor:
    """The target's greedy tokens [B, A, S-1], all slots in one call on top of the window's cache."""
    size = drafting.config.draft.block_size
    blocks_BAS = torch.cat((tokens_BT.gather(1, anchors_BA)[..., None], proposed_BAS.clamp(min=0)), dim=-1)
    positions_BAS = anchors_BA[..., None] + torch.arange(size)
    mask = draft_mask(anchors_BA, keep_BA, num_context=tokens_BT.shape[1], block_size=size, causal=True)
    verified = drafting.target(
        blocks_BAS.flatten(1), positions_BT=positions_BAS.flatten(1), mask_B1TK=mask, past=output.cache
    )
    greedy_BAS: Tensor = verified.logits.argmax(dim=-1).unflatten(1, (-1, size))
    return greedy_BAS[..., :-1]


def _by_drafter(drafting: Drafting) -> BatchPropose:
    def propose(tokens_BT: Tensor, output: TargetOutput, anchors_BA: Tensor) -> Tensor:
        return drafting.propose(tokens_BT, output.taps, anchors_BA)

    return propose


def _by_lookup(count: int) -> BatchPropose:
    def propose(tokens_BT: Tensor, _: TargetOutput, anchors_BA: Tensor) -> Tensor:
        rows: list[list[list[int]]] = []
        for tokens, anchors in zip(tokens_BT.tolist(), anchors_BA.tolist(), strict=True):
            found = [lookup(tokens[: anchor + 1], LOOKUP_SIZE, count) for anchor in anchors]
            rows.append([answer + [NOTHING] * (count - len(answer)) for answer in found])
        return torch.tensor(rows)

    return propose


class _Decoding:
    """The target's own continuations of held-out prompts, and proposers held against them."""

    def __init__(self, drafting: Drafting, held_out: Windows, beat: Callable[[], None]) -> None:
        config = drafting.config.eval
        self._drafting = drafting
        self._beat = beat
        self._target64 = in_float64(drafting.target)
        prompts = held_out.spread(config.prompts)[:, : config.prompt_tokens].tolist()
        self._pairs = []
        for prompt in prompts:
            self._pairs.append((prompt, decode_alone(self._target64, prompt, config.new_tokens)))
            beat()

    def figures(self) -> dict[str, Any]:
        """What the continuations are like."""
        grams = [
            tuple(alone.tokens[start : start + DISTINCT_SIZE])
            for _, alone in self._pairs
            for start in range(max(0, len(alone.tokens) - DISTINCT_SIZE + 1))
        ]
        return {
            "prompts": len(self._pairs),
            "new_tokens": self._drafting.config.eval.new_tokens,
            "distinct_16grams": len(set(grams)) / max(1, len(grams)),
            "smallest_gap": min(alone.smallest_gap for _, alone in self._pairs),
        }

    def measure(self, name: str, propose: Propose) -> float:
        """Mean accepted length of a proposer, whose every output must be the target's own."""
        accepted: list[int] = []
        new_tokens = self._drafting.config.eval.new_tokens
        for prompt, alone in self._pairs:
            speculative = decode_speculatively(
                self._target64, self._drafting.tap_layers, prompt, new_tokens, propose
            )
            require_same(alone, speculative, name)
            accepted += speculative.accepted
            self._beat()
        return sum(accepted) / max(1, len(accepted))
