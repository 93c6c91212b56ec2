"""The drafter's figures: beside two proposers that learned nothing, teacher-forced and by decoding.

The acceptance length is the mean number of accepted draft tokens a verification; the token that the target
adds itself is not counted, so tokens per target call are one more.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer.decoding.draftsession import plain_draft
from trainer.drafting import Drafting, begin_draft
from trainer.errors import DataInvalid
from trainer.evaluation.acceptance import (
    LOOKUP_SIZE,
    Acceptance,
    by_draft_sessions,
    by_drafter,
    by_lookup,
    teacher_forced,
)
from trainer.evaluation.continuations import DISTINCT_SIZE, Decoding
from trainer.exported import load_export

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import torch

    from trainer.batch import Batch
    from trainer.config import Config
    from trainer.data.dataset import HeldOut
    from trainer.target.api import Target


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


def read_finished(
    directory: Path, config: Config, target: Target, mask_token: int, dtype: torch.dtype
) -> Drafting:
    """An exported drafter beside its target; shape and block size are the export's, whatever `config` says.

    Raises:
        DataInvalid: the folder is no drafter, or is another target's.
    """
    draft, found_token = load_export(directory)
    shape, ours = draft.shape, target.shape
    if (shape.hidden_size, shape.num_target_layers) != (ours.hidden_size, ours.num_hidden_layers):
        raise DataInvalid(
            f"drafter {directory}: it is for a target of width {shape.hidden_size} and "
            f"{shape.num_target_layers} layers, and {config.target.path} has {ours.hidden_size} and "
            f"{ours.num_hidden_layers}; give the target it was trained for as target.path"
        )
    if found_token != mask_token:
        raise DataInvalid(
            f"drafter {directory}: its mask token is {found_token}, and target.mask_token is {mask_token}; "
            "give the one it was trained with"
        )
    sized = dataclasses.replace(config, draft=dataclasses.replace(config.draft, block_size=shape.block_size))
    return Drafting(sized, shape, draft.to(target.device, dtype), target, mask_token, dtype)


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
