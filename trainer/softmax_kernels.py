"""Triton's side of `trainer.softmax`: a program takes a row; compiled at the first call."""

import triton
import triton.language as tl


@triton.jit
def row_terms(logits, label, logsumexp, chosen, best, width, COLUMNS: tl.constexpr):
    """The row's logsumexp, its label's logit, and where its largest logit is."""
    row = tl.program_id(0).to(tl.int64)
    begin = logits + row * width
    column = tl.arange(0, COLUMNS)
    largest = float("-inf")
    total = 0.0
    place = 0
    for start in range(0, width, COLUMNS):
        x = tl.load(begin + start + column, mask=start + column < width, other=float("-inf"))
        here = tl.max(x, axis=0)
        at = start + tl.min(tl.where(x == here, column, COLUMNS), axis=0)
        place = tl.where(here > largest, at, place)
        new = tl.maximum(largest, here)
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(x - new), axis=0)
        largest = new
    tl.store(logsumexp + row, largest + tl.log(total))
    tl.store(chosen + row, tl.load(begin + tl.load(label + row)))
    tl.store(best + row, place)


@triton.jit
def logit_gradient(logits, gradient, label, logsumexp, weight, width, stride, COLUMNS: tl.constexpr):
    """Weight * (softmax - one-hot), over the beginning of the row itself."""
    row = tl.program_id(0).to(tl.int64)
    scale = tl.load(weight + row)
    shift = tl.load(logsumexp + row)
    chosen = tl.load(label + row)
    column = tl.arange(0, COLUMNS)
    for start in range(0, width, COLUMNS):
        at = start + column
        x = tl.load(logits + row * width + at, mask=at < width, other=float("-inf"))
        q = tl.exp(x - shift)
        q = tl.where(at == chosen, q - 1, q) * scale
        q = tl.where(scale == 0, 0.0, q)
        tl.debug_barrier()  # what is written here, other threads have read before
        tl.store(gradient + row * stride + at, q.to(gradient.dtype.element_ty), mask=at < width)
