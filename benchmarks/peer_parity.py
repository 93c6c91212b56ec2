"""Whether this trainer and SpecForge compute the same: `python -m benchmarks.peer_parity --src DIR`.

DIR is a checkout of sgl-project/SpecForge, read and never copied. Equal weights, anchors, tokens and hidden
states go through its draft model, mask and loss and through ours, on the CPU at a tiny shape; the loss and
the gradient of every parameter are compared. In float32 both run as they are. In float64 two of SpecForge's
float32 places (RMSNorm, through its own hook for kernels, and the rotary table) are widened, so that nothing
but a difference in the maths is left to see; the third, its decay weights, stays and sets the bound where
there is decay. Ends with exit code 1 if a difference is over its bound.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import logging
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from trainer.batch import Batch, Document, pack
from trainer.blocks import Anchors, sample_anchors
from trainer.config import Config, DataConfig, DraftConfig, LossConfig
from trainer.drafting import Drafting
from trainer.layers import RMSNorm, rope_table
from trainer.model import DraftModel, draft_shape, initialise
from trainer.seeds import generator
from trainer.target.api import Observation, TargetShape

BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-12}
"""Largest difference allowed, as a share of the largest number of the same tensor."""
DECAY_BOUND = 1e-7
"""The same where SpecForge multiplies by float32 weights."""
NO_DECAY = 1e30
"""A gamma at which every weight is 1 exactly; SpecForge is told none."""
CONTEXT, SLOTS, BLOCK, LAYERS, TAPS, WINDOW = 96, 10, 8, 3, 2, 24
MASK_TOKEN = 254
SHAPE = TargetShape(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=8,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    max_position_embeddings=512,
)


@dataclass(frozen=True, slots=True)
class Case:
    """What differs between comparisons."""

    name: str
    loss: LossConfig
    sliding_layers: int = 0

    def bound(self, dtype: torch.dtype) -> float:
        """The largest relative difference allowed."""
        decays = self.loss.objective == "decay" and self.loss.gamma != NO_DECAY
        return max(BOUNDS[dtype], DECAY_BOUND if decays else 0.0)


CASES = (
    Case("decay", LossConfig(gamma=4.0, chunk_tokens=24)),
    Case("no decay, sliding", LossConfig(gamma=NO_DECAY, chunk_tokens=24), sliding_layers=2),
    Case("D-PACE", LossConfig(objective="dpace", dpace_alpha=0.5, chunk_tokens=24)),
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A frozen embedding and head."""

    embedding: Tensor
    head: Tensor


@dataclass(frozen=True, slots=True)
class Inputs:
    """What both sides are given."""

    config: Config
    draft: DraftModel
    vocabulary: Vocabulary
    batch: Batch
    taps: Tensor
    anchors: Anchors


@dataclass(frozen=True, slots=True)
class Result:
    """What both sides give."""

    loss: Tensor
    gradients: dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Difference:
    """Of one tensor."""

    name: str
    absolute: float
    relative: float


def make_inputs(case: Case, dtype: torch.dtype) -> Inputs:
    """Two rows: one full, with holes in its supervision; one short, with fewer candidates than slots."""
    config = Config(
        data=DataConfig(batch_rows=2, context_tokens=CONTEXT, anchors=SLOTS),
        draft=DraftConfig(
            num_layers=LAYERS,
            block_size=BLOCK,
            num_target_layers=TAPS,
            sliding_layers=case.sliding_layers,
            sliding_window=WINDOW,
        ),
        loss=case.loss,
    )
    random = torch.Generator().manual_seed(config.seed)
    draft = DraftModel(draft_shape(SHAPE, config.draft, config.target))
    initialise(draft, random)
    with torch.no_grad():
        for parameter in draft.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=random))
    tokens = torch.randint(0, MASK_TOKEN, (2, CONTEXT), generator=random)
    supervised = torch.rand(2, CONTEXT, generator=random) > 0.1
    supervised[1, 8:] = False
    rows = [[Document(tokens[0], supervised[0])], [Document(tokens[1, :40], supervised[1, :40])]]
    batch = pack(rows, CONTEXT)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=random).to(dtype)

    vocabulary = Vocabulary(draw(256, SHAPE.hidden_size), draw(256, SHAPE.hidden_size) / 4)
    taps = draw(2, CONTEXT, TAPS * SHAPE.hidden_size)
    anchors = sample_anchors(batch, SLOTS, generator(config.seed, "anchors", 0))
    return Inputs(config, draft.to(dtype), vocabulary, batch, taps, anchors)


def run_ours(given: Inputs) -> Result:
    """The loss as a training step makes it, but for D-PACE divided by the rows, as SpecForge does."""
    dtype = given.taps.dtype
    drafting = Drafting(given.config, given.draft.shape, given.draft, given.vocabulary, MASK_TOKEN, dtype)
    terms = drafting.loss(given.batch, Observation(given.taps, None), 0)
    rows = torch.tensor(float(len(given.taps)), dtype=dtype)
    loss = terms.total / (rows if given.config.loss.objective == "dpace" else terms.weight)
    return _result(given.draft, loss)


def run_peer(given: Inputs) -> Result:
    """SpecForge's own draft model and wrapper, with anchors given instead of drawn."""
    family = importlib.import_module("specforge.algorithms.common.dflash_family_model")
    dtype, loss = given.taps.dtype, given.config.loss
    draft = _peer_draft(given).to(dtype)
    if dtype == torch.float64:
        draft.rotary_emb = _WideRotary()
    draft.load_state_dict(given.draft.state_dict())
    embedding, head = (_frozen(weight) for weight in (given.vocabulary.embedding, given.vocabulary.head))
    model = family.OnlineDFlashModel(
        draft,
        lambda hidden: hidden @ head.T,
        lambda ids: nn.functional.embedding(ids, embedding),
        MASK_TOKEN,
        block_size=BLOCK,
        attention_backend="sdpa",
        num_anchors=SLOTS,
        loss_decay_gamma=None if loss.gamma == NO_DECAY else loss.gamma,
        objective_chunk_blocks=3,
        loss_type="dpace" if loss.objective == "dpace" else "dflash",
        dpace_alpha=loss.dpace_alpha,
    )
    model._sample_anchor_positions = lambda *_: (given.anchors.index, given.anchors.keep)  # noqa: SLF001
    return _result(draft, model(given.batch.tokens, given.taps, given.batch.loss_mask.to(dtype))[0])


def _peer_draft(given: Inputs) -> Any:  # noqa: ANN401 - a class of SpecForge
    config = transformers.Qwen3Config(
        hidden_size=SHAPE.hidden_size,
        num_hidden_layers=LAYERS,
        num_attention_heads=SHAPE.num_attention_heads,
        num_key_value_heads=SHAPE.num_key_value_heads,
        head_dim=SHAPE.head_dim,
        intermediate_size=SHAPE.intermediate_size,
        vocab_size=SHAPE.vocab_size,
        max_position_embeddings=SHAPE.max_position_embeddings,
        rms_norm_eps=SHAPE.rms_norm_eps,
        attention_bias=False,
        attention_dropout=0.0,
        rope_theta=SHAPE.rope_theta,
        layer_types=list(given.draft.shape.layer_types),
        sliding_window=WINDOW,
        use_sliding_window=given.config.draft.sliding_layers > 0,
    )
    config._attn_implementation = "sdpa"  # noqa: SLF001 - as SpecForge's own provider does
    config.num_target_layers = SHAPE.num_hidden_layers
    config.block_size = BLOCK
    layer_ids = list(given.draft.shape.target_layer_ids)
    config.dflash_config = {"mask_token_id": MASK_TOKEN, "target_layer_ids": layer_ids}
    kernels = importlib.import_module("specforge.modeling.draft.dflash_kernels")
    wide = dataclasses.replace(kernels.DEFAULT_DFLASH_KERNELS, make_rms_norm=RMSNorm)
    chosen = wide if given.taps.dtype == torch.float64 else None
    return importlib.import_module("specforge.modeling.draft.dflash").DFlashDraftModel(config, chosen)


class _WideRotary(nn.Module):
    """The rotary table in float64, as transformers shapes it."""

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = rope_table(positions, SHAPE.head_dim, SHAPE.rope_theta, x.dtype)
        return cos[:, 0], sin[:, 0]


def _frozen(weight: Tensor) -> Tensor:
    return weight.detach().clone()


def _result(draft: nn.Module, loss: Tensor) -> Result:
    draft.zero_grad()
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in draft.named_parameters()}
    missing = [name for name, gradient in gradients.items() if gradient is None]
    assert not missing, f"no gradient: {missing}"
    return Result(loss.detach(), {name: grad.clone() for name, grad in gradients.items() if grad is not None})


def differences(ours: Result, peer: Result) -> list[Difference]:
    """Of the loss and of each gradient."""
    assert ours.gradients.keys() == peer.gradients.keys()
    pairs = {"loss": (ours.loss, peer.loss)}
    pairs |= {name: (ours.gradients[name], peer.gradients[name]) for name in ours.gradients}
    found = []
    for name, (mine, theirs) in pairs.items():
        absolute = float((mine.double() - theirs.double()).abs().max())
        found.append(Difference(name, absolute, absolute / float(theirs.abs().max())))
    return found


def compare(dtype: torch.dtype) -> bool:
    """Print the table of one type; whether all is within its bound."""
    print(f"\n{str(dtype).removeprefix('torch.')}: absolute and relative differences")
    columns, within = [], True
    for case in CASES:
        given = make_inputs(case, dtype)
        ours, peer = run_ours(given), run_peer(given)
        columns.append(differences(ours, peer))
        worst = max(columns[-1], key=lambda cell: cell.relative)
        good = all(cell.relative <= case.bound(dtype) for cell in columns[-1])  # false for NaN
        within = within and good
        losses = f"loss {float(ours.loss):.12f}, SpecForge's {float(peer.loss):.12f}"
        verdict = "within" if good else "OVER"
        print(f"  {case.name}: {losses}; {int((~given.anchors.keep).sum())} slots of {2 * SLOTS} empty")
        print(f"    worst {worst.relative:.1e}, {worst.name}: {verdict} the bound, {case.bound(dtype):g}")
    print(f"  {'':40}" + "".join(f"{case.name:>22}" for case in CASES))
    for row in zip(*columns, strict=True):
        cells = "".join(f"{cell.absolute:>12.1e}{cell.relative:>10.1e}" for cell in row)
        print(f"  {row[0].name:40}{cells}")
    return within


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--src", type=Path, required=True, help="a checkout of SpecForge")
    source = parser.parse_args().src
    if not (source / "specforge").is_dir():
        parser.error(f"--src {source}: no specforge folder in it; give a checkout of sgl-project/SpecForge")
    sys.path.insert(0, str(source))
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, CPU")
    verdicts = [compare(dtype) for dtype in BOUNDS]
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
