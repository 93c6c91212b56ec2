"""The useful work of a micro-batch: what MFU is measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer.plan.dims import Dims, dims_of, layer_matrices, target_parameters

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.target.api import TargetShape


@dataclass(frozen=True, slots=True)
class Flops:
    """Floating-point operations of one micro-batch, a multiplication and an addition being two."""

    linears: int
    """Drafter's matrices, forward and backward (three times the forward; twice in the fusion of taps)."""
    attention: int
    """Drafter's scores and what they mix, forward and backward (three times the forward)."""
    head: int
    """Target's head on drafted positions, forward and the gradient of its input (twice the forward)."""
    target: int
    """Target's forward over all tokens; not part of the drafter's."""

    @property
    def drafter(self) -> int:
        """All of the drafter's training."""
        return self.linears + self.attention + self.head


def useful_flops(
    config: Config,
    shape: TargetShape,
    *,
    document_tokens: float | None = None,
    target_parameters: int | None = None,
) -> Flops:
    """Of one micro-batch in which every slot has an anchor and every row is full.

    Only what the mathematics needs: not what a kernel computes again (flash attention's backward makes the
    scores a second time), nor masked tiles, padding or the anchors' logits. `document_tokens` is the mean
    length of a document, weighted by anchors; by default the longest there can be.
    """
    dims = dims_of(config, shape)
    length = min(dims.X, document_tokens or dims.X)
    queries, keys = dims.R * dims.Q, dims.R * dims.K
    key_matrices = 2 * dims.D * dims.M * dims.H
    layer = queries * (layer_matrices(dims) - key_matrices) + keys * key_matrices
    fusion = dims.R * dims.T * dims.E * dims.D
    window = config.draft.sliding_window
    full = dims.L - config.draft.sliding_layers
    seen = full * (length / 2 + dims.S)
    seen += config.draft.sliding_layers * (_mean_in_window(length, window) + (dims.S + 1) / 2)
    drafted = dims.R * dims.A * (dims.S - 1)
    head = 2 * drafted * dims.D * dims.V
    return Flops(
        linears=3 * 2 * dims.L * layer + 2 * 2 * fusion,
        attention=round(3 * 4 * dims.N * dims.H * queries * seen),
        head=(2 + 1 if config.loss.labels == "target" else 2) * head,
        target=_target_flops(dims, shape, length, target_parameters),
    )


def _mean_in_window(length: float, window: int) -> float:
    """Mean over uniform anchors a < length of the context that min(a, window) leaves."""
    return length / 2 if window >= length else window - window * window / (2 * length)


def _target_flops(dims: Dims, shape: TargetShape, length: float, count: int | None) -> int:
    tokens = dims.R * dims.T
    both = 2 * shape.vocab_size * shape.hidden_size  # a look-up, and a head that observing does not run
    matrices = (target_parameters(shape) if count is None else count) - both
    attention = shape.num_hidden_layers * shape.num_attention_heads * shape.head_dim * length / 2
    return round(tokens * (2 * matrices + 4 * attention))
