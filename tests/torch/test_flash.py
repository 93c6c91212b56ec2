"""FlashAttention 4's place in the trainer, filled by a dense kernel: a CPU cannot run the real one."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.torch.maskcases import make_anchors, random_case
from trainer import flash
from trainer.attention import attend, make_mask
from trainer.errors import ConfigInvalid
from trainer.flash import FlashMask, flash_mask, require_flash
from trainer.masks import MaskRule, dense_mask, key_intervals

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")


def seen(intervals: Tensor, queries: int, keys: int) -> Tensor:
    """The grid that the intervals are of, [R, Q, K]."""
    key = torch.arange(keys)
    a, b, c, d = (intervals[:, bound, :queries, None] for bound in range(4))
    grid: Tensor = ((key >= a) & (key < b)) | ((key >= c) & (key < d))
    return grid


def probabilities(q: Tensor, k: Tensor, intervals: Tensor) -> Tensor:
    """[R, N, Q, K], keys already one a query head."""
    scores = torch.einsum("rqnh,rknh->rnqk", q, k) / q.shape[-1] ** 0.5
    mask = seen(intervals, q.shape[1], k.shape[1])[:, None]
    found: Tensor = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
    return found


def spread(tensor: Tensor, heads: int) -> Tensor:
    return tensor.repeat_interleave(heads // tensor.shape[2], dim=2)


def gathered(tensor: Tensor, key_heads: int) -> Tensor:
    total: Tensor = tensor.unflatten(2, (key_heads, -1)).sum(dim=3)
    return total


@flash._flash.register_kernel("cpu")
def forward(q, k, v, intervals, *_):
    heads = q.shape[2]
    p = probabilities(q, spread(k, heads), intervals)
    out = torch.einsum("rnqk,rknh->rqnh", p, spread(v, heads)).contiguous()
    return out, q.new_zeros(q.shape[0], heads, q.shape[1])


@flash._flash_backward.register_kernel("cpu")
def backward(q, k, v, _out, grad, _logsumexp, intervals, *_):
    heads, key_heads = q.shape[2], k.shape[2]
    k, v = spread(k, heads), spread(v, heads)
    p = probabilities(q, k, intervals)
    by_p = torch.einsum("rqnh,rknh->rnqk", grad, v)
    by_score = p * (by_p - (p * by_p).sum(dim=-1, keepdim=True)) / q.shape[-1] ** 0.5
    dq = torch.einsum("rnqk,rknh->rqnh", by_score, k)
    dk = torch.einsum("rnqk,rqnh->rknh", by_score, q)
    dv = torch.einsum("rnqk,rqnh->rknh", p, grad)
    return dq.contiguous(), gathered(dk, key_heads), gathered(dv, key_heads)


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_the_intervals_are_the_mask(first):
    for seed in range(first, first + 50):
        anchors, rule = random_case(seed)
        grid = dense_mask(anchors, rule)[:, 0]
        intervals = key_intervals(anchors, rule)
        assert intervals.dtype == torch.int32
        assert intervals.shape[2] % 128 == 0
        assert torch.equal(seen(intervals, *grid.shape[1:]), grid)


def test_tensors_have_plain_strides_also_where_there_is_one_tile():
    anchors = make_anchors([[30, 90]], [[True, True]], [[0, 40]])
    for tensor in flash_mask(anchors, MaskRule(128, 8)):
        assert tensor.stride() == torch.empty(tensor.shape).stride()


@pytest.mark.parametrize("seed", [2, 3, 5])
@pytest.mark.parametrize("compiles", [False, True])
def test_output_and_gradients_go_through_the_operator(seed, compiles):
    anchors, rule = random_case(seed)
    queries = anchors.index.shape[1] * rule.block_size
    rows, keys = len(anchors.index), rule.num_context + queries
    random = torch.Generator().manual_seed(seed)
    tensors = [
        torch.randn(rows, heads, size, 8, generator=random, requires_grad=True)
        for heads, size in ((4, queries), (2, keys), (2, keys))
    ]
    call = torch.compile(attend, backend="aot_eager", fullgraph=True, dynamic=False) if compiles else attend
    results: list[tuple[Tensor, ...]] = []
    cases: list[tuple[Any, Any]] = [
        (call, make_mask(anchors, rule, CPU, flash=True)),
        (attend, make_mask(anchors, rule, CPU)),
    ]
    for function, mask in cases:
        assert isinstance(mask, FlashMask) == (len(results) == 0)
        out = function(*tensors, mask)
        results.append((out, *torch.autograd.grad(out.square().sum(), tensors)))
    ours, theirs = results
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("device", "dtype", "head_dim", "what"),
    [
        ("cpu", torch.bfloat16, 128, "not on cpu in torch.bfloat16"),
        ("cuda", torch.float32, 128, "not on cuda in torch.float32"),
        ("cuda", torch.bfloat16, 192, "the head dim is 192"),
        ("cuda", torch.bfloat16, 80, "the head dim is 80"),
    ],
)
def test_where_it_cannot_compute_it_says_what_can(device, dtype, head_dim, what):
    with pytest.raises(ConfigInvalid, match=rf"compute.attention: flash, but .*{what}.*; take flex"):
        require_flash(torch.device(device), dtype, head_dim)
