"""What a drafter learns from: cross-entropy or KL along the block, without the logits of a whole micro-batch.

`chunked_loss` makes the logits of a few blocks at a time, and with them their gradient, so that one chunk is
all that ever exists of the [R, Q, V] logits (10 GB in bfloat16 at 32,768 block tokens and 151,936 ids).

Shapes: R rows, A anchor slots, S block tokens, Q = A*S, C blocks of a chunk, P = S-1 drafted positions of a
block, D model dim, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from trainer import softmax

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainer.config import LossConfig


@dataclass(frozen=True, slots=True)
class LossTerms:
    """Sums over a micro-batch, scalars of float32 (float64 if the inputs are).

    The loss of a step is the sum of `total` over its ranks and micro-batches divided by that of `weight`.
    """

    total: Tensor
    """Sum of loss * weight, in nats; the only one with a gradient, and that to `hidden` alone."""
    weight: Tensor
    """Sum of weights: decayed, or D-PACE's."""
    correct: Tensor
    """Counted positions at which the drafter's most likely token is the label."""
    counted: Tensor
    """Positions that count: those whose weight given is not 0, but for anchors."""


def chunked_loss(
    hidden_RQD: Tensor,
    head_VD: Tensor,
    labels_RQ: Tensor | None,
    teacher_RQD: Tensor | None,
    weights_RQ: Tensor,
    config: LossConfig,
    block_size: int,
) -> LossTerms:
    """The loss of drafted positions k = 1..S-1 of every block; anchors (k = 0) never count.

    With `labels_RQ`, ids of the text, a position's loss is CE. With `teacher_RQD` instead, the target's head
    inputs at the label's position - 1, it is KL(target || drafter): the same gradient as CE against the
    target's distribution, less its entropy, so that 0 is the floor; the label that `correct` and D-PACE
    look at is then the target's most likely token, the one that greedy verification accepts.

    Weights along a block, times `weights_RQ` (0 or 1):

    - `decay`: exp(-(k-1)/gamma) (DFlash, equation 4).
    - `dpace` (arXiv:2605.18810, equations 7 to 9): with q the drafter's probability of the label and
      s = (1-alpha) q + alpha, w_j = sum over m >= j of prod over i <= m of s_i, detached. A position that
      does not count is left out of the products and of the sum, as SpecForge and Model-Optimizer have it.
      The caller divides by the sum of these weights, as Model-Optimizer does; SpecForge divides by the rows.

    Hidden states of positions that do not count may hold anything, NaN included. `head_VD` is frozen, and of
    the type of `hidden_RQD` (as is the teacher); logits become float32 (float64) before the softmax. Nothing
    waits for the device.

    Raises:
        ValueError: both or neither of labels and teacher.
    """
    if (labels_RQ is None) == (teacher_RQD is None):
        raise ValueError("chunked_loss: give either labels or a teacher, and not both")
    with_gradient = hidden_RQD.requires_grad and torch.is_grad_enabled()
    arguments = (head_VD, labels_RQ, teacher_RQD, weights_RQ, config, block_size, with_gradient)
    apply: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]] = _ChunkedLoss.apply
    return LossTerms(*apply(hidden_RQD, *arguments))


def decay_weights(
    block_size: int,
    gamma: float,
    *,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """[S] weights exp(-(k-1)/gamma) of offsets k = 1..S-1, and 0 for the anchor (DFlash, equation 4)."""
    offsets = torch.arange(block_size, dtype=dtype, device=device)
    return torch.where(offsets > 0, torch.exp(-(offsets - 1) / gamma), 0.0)


def dpace_weights(confidences: Tensor, counted: Tensor, alpha: float) -> Tensor:
    """D-PACE's weights [..., P] of the confidences in the labels; 0 where `counted` is false."""
    smooth = torch.where(counted, (1 - alpha) * confidences + alpha, 1.0)
    reached = torch.where(counted, smooth.cumprod(dim=-1), 0.0)
    suffix = reached.flip(-1).cumsum(dim=-1).flip(-1)
    return torch.where(counted, suffix, 0.0)


def accepted_lengths(drafted: Tensor, verified: Tensor) -> Tensor:
    """Length of the common prefix along the last dimension: what one greedy verification accepts."""
    return (drafted == verified).long().cumprod(dim=-1).sum(dim=-1)


class _ChunkedLoss(torch.autograd.Function):
    """Makes the gradient in the forward, while a chunk's probabilities are there; the head has none."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        hidden_RQD: Tensor,
        head_VD: Tensor,
        labels_RQ: Tensor | None,
        teacher_RQD: Tensor | None,
        weights_RQ: Tensor,
        config: LossConfig,
        block_size: int,
        with_gradient: bool,  # noqa: FBT001 - apply() takes no keywords
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        gradient_RQD = torch.zeros_like(hidden_RQD) if with_gradient else None
        views = [
            None if given is None else _drafted(given, block_size)
            for given in (hidden_RQD, labels_RQ, teacher_RQD, weights_RQ, gradient_RQD)
        ]
        fused = labels_RQ is not None and softmax.takes(hidden_RQD)
        sums = [
            (_fused_terms if fused else _chunk_terms)(chunk, head_VD, config)
            for chunk in _chunks(views, max(1, -(-config.chunk_tokens // block_size)))
        ]
        terms = torch.stack([torch.stack(part) for part in sums]).sum(dim=0).unbind()
        total, weight, correct, counted = (term.clone() for term in terms)
        ctx.mark_non_differentiable(weight, correct, counted)
        if gradient_RQD is not None:
            ctx.save_for_backward(gradient_RQD)
        return total, weight, correct, counted

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        (gradient_RQD,) = ctx.saved_tensors
        # With dimensions the scale keeps its own precision; without, it would be rounded to bfloat16.
        scale = grad_total.reshape(1, 1, 1)
        scaled_RQD = torch.mul(gradient_RQD, scale, out=torch.empty_like(gradient_RQD))
        return scaled_RQD, None, None, None, None, None, None, None


def _drafted(given: Tensor, block_size: int) -> Tensor:
    """A view [R*A, P, ...] of [R, Q, ...] without the anchors."""
    return given.reshape(-1, block_size, *given.shape[2:])[:, 1:]


def _chunks(views: list[Tensor | None], blocks: int) -> Iterator[list[Tensor | None]]:
    hidden = views[0]
    assert hidden is not None
    for begin in range(0, len(hidden), blocks):
        yield [None if view is None else view[begin : begin + blocks] for view in views]


def _chunk_terms(chunk: list[Tensor | None], head_VD: Tensor, config: LossConfig) -> tuple[Tensor, ...]:
    """Total, weight, correct and counted of some blocks; writes their gradient where it was asked for."""
    hidden_CPD, labels_CP, teacher_CPD, given_CP, gradient_CPD = chunk
    assert hidden_CPD is not None
    assert given_CP is not None
    wide = torch.float64 if hidden_CPD.dtype == torch.float64 else torch.float32
    counted_CP = given_CP != 0
    log_q = _log_probabilities(hidden_CPD, head_VD, wide)
    p = None
    if teacher_CPD is None:
        assert labels_CP is not None
        label = labels_CP.reshape(-1, 1)
        losses = -log_q.gather(-1, label)
    else:
        log_p = _log_probabilities(teacher_CPD, head_VD, wide)
        label = log_p.argmax(dim=-1, keepdim=True)
        p, losses = _divergence(log_p, log_q)
    confidences_CP = log_q.gather(-1, label).exp().view_as(given_CP)
    correct_CP = (log_q.argmax(dim=-1, keepdim=True) == label).view_as(given_CP) & counted_CP
    weights_CP = _position_weights(confidences_CP, counted_CP, config) * given_CP
    if gradient_CPD is not None:
        scale = weights_CP.reshape(-1, 1)
        _put(gradient_CPD, scale, _gradient(log_q, p, label, scale, head_VD))
    return _sums(losses.view_as(given_CP), weights_CP, correct_CP, counted_CP)


def _fused_terms(chunk: list[Tensor | None], head_VD: Tensor, config: LossConfig) -> tuple[Tensor, ...]:
    """The same of the text's own labels, by kernels that read the logits twice."""
    hidden_CPD, labels_CP, _, given_CP, gradient_CPD = chunk
    assert hidden_CPD is not None
    assert labels_CP is not None
    assert given_CP is not None
    counted_CP = given_CP != 0
    label = labels_CP.reshape(-1)
    logits = _logits(hidden_CPD, head_VD, torch.float32)
    logsumexp, chosen, best = softmax.row_terms(logits, label)
    losses_CP = (logsumexp - chosen).view_as(given_CP)
    weights_CP = _position_weights(torch.exp(-losses_CP), counted_CP, config) * given_CP
    if gradient_CPD is not None:
        scale = weights_CP.reshape(-1, 1)
        gradient = softmax.logit_gradient_(logits, label, logsumexp, scale, head_VD.dtype)
        _put(gradient_CPD, scale, torch.mm(gradient, head_VD))
    return _sums(losses_CP, weights_CP, (best == label).view_as(given_CP) & counted_CP, counted_CP)


def _put(gradient_CPD: Tensor, scale: Tensor, gradient: Tensor) -> None:
    gradient_CPD.copy_(torch.where(scale != 0, gradient, 0.0).view_as(gradient_CPD))


def _sums(
    losses_CP: Tensor, weights_CP: Tensor, correct_CP: Tensor, counted_CP: Tensor
) -> tuple[Tensor, ...]:
    # Chosen, not multiplied: what does not count may be infinite, and 0 times that is NaN.
    total = torch.where(weights_CP != 0, losses_CP * weights_CP, 0.0).sum()
    return total, weights_CP.sum(), correct_CP.sum().to(total.dtype), counted_CP.sum().to(total.dtype)


def _logits(hidden_CPD: Tensor, head_VD: Tensor, wide: torch.dtype) -> Tensor:
    """[C*P, V]; a GPU hands the product out in float32, before anything is rounded."""
    hidden = hidden_CPD.reshape(-1, hidden_CPD.shape[-1])
    if hidden.is_cuda and hidden.dtype != wide:
        return torch.mm(hidden, head_VD.T, out_dtype=wide)
    return torch.mm(hidden, head_VD.T).to(wide)


def _log_probabilities(hidden_CPD: Tensor, head_VD: Tensor, wide: torch.dtype) -> Tensor:
    return torch.log_softmax(_logits(hidden_CPD, head_VD, wide), dim=-1)


def _divergence(log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    """The probabilities p, and KL(p || q) [C*P, 1]; overwrites log_p."""
    difference = log_p - log_q
    p = log_p.exp_()
    return p, difference.mul_(p).sum(dim=-1, keepdim=True)


def _position_weights(confidences_CP: Tensor, counted_CP: Tensor, config: LossConfig) -> Tensor:
    if config.objective == "dpace":
        return dpace_weights(confidences_CP, counted_CP, config.dpace_alpha)
    size, device = counted_CP.shape[-1] + 1, counted_CP.device
    return decay_weights(size, config.gamma, device=device, dtype=confidences_CP.dtype)[1:]


def _gradient(log_q: Tensor, p: Tensor | None, label: Tensor, scale: Tensor, head_VD: Tensor) -> Tensor:
    """[C*P, D] of weight * (q - p) @ head, p one-hot where None; overwrites log_q."""
    q = log_q.exp_()
    if p is None:
        q.scatter_(-1, label, q.gather(-1, label) - 1)
    else:
        q.sub_(p)
    # Subtracted before it is rounded to the head's type, since q - 1 of a sure drafter is tiny.
    return torch.mm(torch.mul(q, scale, out=torch.empty_like(q, dtype=head_VD.dtype)), head_VD)
