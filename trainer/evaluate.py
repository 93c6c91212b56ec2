"""The drafter's figures: beside two proposers that learned nothing, teacher-forced and by decoding.

The acceptance length is the mean number of accepted draft tokens a verification; the token that the target
adds itself is not counted, so tokens per target call are one more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer.acceptance import (
    LOOKUP_SIZE,
    Acceptance,
    by_draft_sessions,
    by_drafter,
    by_lookup,
    teacher_forced,
)
from trainer.decode import decode_alone, decode_speculatively, propose_by_lookup, require_same
from trainer.drafting import begin_draft
from trainer.draftsession import plain_draft, propose_by_drafter, sample_by_drafter
from trainer.sampling import sample_speculatively
from trainer.seeds import generator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainer.batch import Batch
    from trainer.data.dataset import HeldOut
    from trainer.decode import Decoded, Propose
    from trainer.drafting import Drafting
    from trainer.target.api import Target, TargetShape

DISTINCT_SIZE = 16
EXACT_LIMIT_BYTES = 8 << 30
"""A target is decoded in float64, and the tokens required to be the same, if its copy takes no more."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The figures of `result.json`."""

    teacher_forced: dict[str, Acceptance]
    decoded: dict[str, Any] | None
    sampled: dict[str, float] | None = None

    @property
    def acceptance_length(self) -> float:
        """The headline: the drafter's, teacher-forced on held-out files."""
        return self.teacher_forced["drafter"].length

    def as_json(self) -> dict[str, Any]:
        """With the definition beside the figures."""
        drafter = self.teacher_forced["drafter"]
        return {
            "unit": "accepted draft tokens a verification, the target's own token not counted",
            "teacher_forced": {name: found.length for name, found in self.teacher_forced.items()},
            "per_position": list(drafter.reached),
            "per_position_given_all_before": list(drafter.conditional),
            "verifications": drafter.verifications,
            "decoded": self.decoded,
            "sampled": self.sampled,
        }

    def lines(self) -> list[str]:
        """For the log."""
        lengths = {name: found.length for name, found in self.teacher_forced.items()}
        drafter = self.teacher_forced["drafter"]
        shares = " ".join(f"{share:.2f}" for share in drafter.reached)
        lines = [
            f"acceptance length, teacher-forced on held-out files: {_compare(lengths)}",
            f"with the target's own token: {1 + drafter.length:.2f} tokens a target call",
            f"share of {drafter.verifications} verifications that accepted position 1, 2, ...: {shares}",
        ]
        if self.decoded is not None:
            lines += _decoded_lines(self.decoded)
        if self.sampled is not None:
            told = self.sampled
            lines.append(
                f"acceptance length, sampling at temperature {told['temperature']:g}: {told['drafter']:.2f}"
            )
        return lines


def _compare(figures: dict[str, Any]) -> str:
    named = {
        "drafter": "drafter",
        "untrained": "untrained drafter",
        "lookup": f"{LOOKUP_SIZE}-gram look-up",
    }
    return ", ".join(f"{text} {figures[name]:.2f}" for name, text in named.items() if name in figures)


def _decoded_lines(told: dict[str, Any]) -> list[str]:
    same = "identical to the target's own"
    if not told["exact"]:
        same = f"{told['same_tokens']:.2f} of them identical to the target's own, within its rounding"
    decoded = (
        f"decoded {told['prompts']} prompts x {told['new_tokens']} tokens, {same}; distinct "
        f"{DISTINCT_SIZE}-grams {told['distinct_16grams']:.2f}; smallest gap of the two best logits "
        f"{told['smallest_gap']:.1e}"
    )
    return [f"acceptance length, greedy decoding: {_compare(told)}", decoded]


def evaluate(drafting: Drafting, target: Target, held_out: HeldOut, beat: Callable[[], None]) -> Evaluation:
    """Measure the drafter, itself untrained, and the look-up, on held-out files.

    The untrained drafter goes through the same compiled calls, so that it measures the weights alone. `beat`
    is called as it goes. Changes nothing.
    """
    batches = held_out.batches(drafting.config.eval.windows)
    forced = {"drafter": teacher_forced(drafting, target, batches, by_drafter(drafting), beat)}
    count = drafting.config.draft.block_size - 1
    forced["lookup"] = teacher_forced(drafting, target, batches, by_lookup(count), beat)
    decoding = Decoding(drafting, target, held_out, beat)
    decoded = decoding.figures() if decoding.prompts else None
    draft = plain_draft(drafting)
    trained = {name: value.clone() for name, value in draft.state_dict().items()}
    device = drafting.vocabulary.embedding.device
    untrained = begin_draft(drafting.config, drafting.shape, target, device)
    draft.load_state_dict(untrained.state_dict())
    forced["untrained"] = teacher_forced(drafting, target, batches, by_drafter(drafting), beat)
    if decoded is not None:
        decoded["untrained"] = decoding.measure("the untrained drafter")
    draft.load_state_dict(trained)
    return Evaluation(forced, decoded)


def evaluate_finished(
    drafting: Drafting,
    target: Target,
    held_out: HeldOut,
    beat: Callable[[], None],
    *,
    temperature: float = 0.0,
) -> Evaluation:
    """Measure a drafter that was read from its export, with nothing compiled; above 0, by sampling too."""
    batches = held_out.batches(drafting.config.eval.windows)
    forced = {"drafter": teacher_forced(drafting, target, batches, by_draft_sessions(drafting), beat)}
    count = drafting.config.draft.block_size - 1
    forced["lookup"] = teacher_forced(drafting, target, batches, by_lookup(count), beat)
    decoding = Decoding(drafting, target, held_out, beat)
    decoded = decoding.figures() if decoding.prompts else None
    sampled = None
    if decoding.prompts and temperature > 0:
        sampled = {"temperature": temperature, "drafter": decoding.measure_sampling(temperature)}
    return Evaluation(forced, decoded, sampled)


def teacher_forced_drafter(
    drafting: Drafting, target: Target, batches: Sequence[Batch], beat: Callable[[], None]
) -> float:
    """The drafter's own teacher-forced acceptance length on these batches."""
    return teacher_forced(drafting, target, batches, by_drafter(drafting), beat).length


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
