import re

import pytest
import torch
from torch._dynamo import config as dynamo_config
from torch._dynamo.utils import counters

from tests.torch.maskcases import make_anchors, random_case
from trainer.attention import attend, dense_bytes, make_mask, refuse_backend, refuse_dense, refusing
from trainer.blocks import Anchors
from trainer.errors import DenseAttentionRefused
from trainer.failures import _is_tracing, _TracingThread
from trainer.masks import MaskRule, block_mask, dense_mask

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
HEADS, KEY_HEADS, WIDTH = 4, 2, 8
RULE = MaskRule(40, 4)
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
BYTES = 1 * HEADS * 12 * 52 * 4


@pytest.fixture(autouse=True)
def fresh_dynamo():
    """Nothing compiled, nothing counted."""
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def some_anchors(first: int = 3) -> Anchors:
    return make_anchors([[first, 9, 30]], [[True, True, False]], [[0, 5, 0]])


def inputs(rows: int = 1, queries: int = 12, keys: int = 52, seed: int = 0) -> Inputs:
    draw = torch.Generator().manual_seed(seed)
    sizes = ((HEADS, queries), (KEY_HEADS, keys), (KEY_HEADS, keys))
    q, k, v = (torch.randn(rows, heads, length, WIDTH, generator=draw) for heads, length in sizes)
    return q, k, v


def compiled(*, fullgraph: bool = True):
    """Attention as the trainer compiles it, forward alone: flex has no backward on the CPU."""
    return torch.compile(attend, backend="eager", fullgraph=fullgraph, dynamic=False)


def refusal_of(needed: int) -> str:
    return rf"{needed:,} bytes \(.* GiB\)"


# -- what it computes


def test_compiled_flex_is_the_dense_attention():
    call = torch.compile(attend, backend="aot_eager", fullgraph=True, dynamic=False)
    q, k, v = inputs()
    flex = call(q, k, v, block_mask(some_anchors(), RULE))
    torch.testing.assert_close(flex, attend(q, k, v, dense_mask(some_anchors(), RULE)))


def test_new_anchors_at_each_step_compile_nothing_new():
    call = compiled()
    for step in range(20):
        anchors = make_anchors([[step, 20 + step, 39]], [[step % 3 > 0, True, step % 2 > 0]], [[0, step, 30]])
        q, k, v = inputs(seed=step)
        flex = call(q, k, v, block_mask(anchors, RULE))
        torch.testing.assert_close(flex, attend(q, k, v, dense_mask(anchors, RULE)))
        assert counters["stats"]["unique_graphs"] == 1


def test_another_rule_is_compiled_and_not_mistaken_for_the_first():
    call = compiled()
    for number, rule in enumerate((RULE, MaskRule(40, 4, causal=True, window=6)), start=1):
        q, k, v = inputs()
        flex = call(q, k, v, block_mask(some_anchors(), rule))
        torch.testing.assert_close(flex, attend(q, k, v, dense_mask(some_anchors(), rule)))
        assert counters["stats"]["unique_graphs"] == number


def test_the_dense_path_is_softmax_over_what_the_mask_shows():
    anchors, rule = random_case(2)
    queries = anchors.index.shape[1] * rule.block_size
    q, k, v = inputs(len(anchors.index), queries, rule.num_context + queries)
    mask = make_mask(anchors, rule, CPU)
    assert isinstance(mask, torch.Tensor)
    scores = q.double() @ k.double().repeat_interleave(2, dim=1).transpose(-2, -1) / WIDTH**0.5
    weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
    expected = weights @ v.double().repeat_interleave(2, dim=1)
    torch.testing.assert_close(attend(q, k, v, mask).double(), expected, atol=1e-5, rtol=1e-5)


def test_without_a_mask_attention_is_causal():
    q, k, v = inputs(queries=9, keys=9)
    causal = torch.ones(9, 9, dtype=torch.bool).tril()[None, None]
    torch.testing.assert_close(attend(q, k, v, None), attend(q, k, v, causal))


@pytest.mark.parametrize("rule", [RULE, MaskRule(40, 4, causal=True, window=3)])
def test_empty_slots_give_neither_nan_nor_gradient(rule):
    anchors = make_anchors([[0, 12, 0]], [[False, True, False]], [[0, 4, 0]])
    weights = torch.zeros(1, 1, 12, 1)
    weights[:, :, 5:8] = 1
    gradients = []
    for filler in (0.0, 1e4):
        tensors = inputs()
        for tensor in tensors:
            tensor[:, :, -12:-8] = filler  # the first slot's block, in queries and keys alike
            tensor.requires_grad_()
        out = attend(*tensors, make_mask(anchors, rule, CPU))
        assert out.isfinite().all()
        (out * weights).square().sum().backward()
        gradients.append([tensor.grad for tensor in tensors])
    for zero, large in zip(*gradients, strict=True):
        assert torch.equal(zero, large)
        assert zero.isfinite().all()
        assert zero[:, :, -8:-4].abs().sum() > 0
        assert not zero[:, :, -12:-8].any()
        assert not zero[:, :, -4:].any()


# -- what it refuses


def test_the_uncompiled_call_is_refused_with_the_bytes():
    with pytest.raises(DenseAttentionRefused, match=refusal_of(BYTES)):
        attend(*inputs(), block_mask(some_anchors(), RULE))


@pytest.mark.parametrize("stance", ["force_eager", "eager_on_recompile"])
def test_a_compiler_switched_off_is_an_uncompiled_call(stance):
    call = compiled(fullgraph=False)
    with torch.compiler.set_stance(stance), pytest.raises(DenseAttentionRefused, match=refusal_of(BYTES)):
        call(*inputs(), block_mask(some_anchors(), RULE))
    call(*inputs(), block_mask(some_anchors(), RULE))


def test_a_tracer_in_another_thread_ends_in_the_refusal_where_torch_would_run_dense():
    call, mask = compiled(), block_mask(some_anchors(), RULE)
    before = call(*inputs(), mask)
    with _TracingThread(), dynamo_config.patch(error_on_nested_fx_trace=False):
        if _is_tracing():  # up to torch 2.13; from 2.14 on no thread takes another's tracing for its own
            with pytest.raises(DenseAttentionRefused, match=refusal_of(BYTES)):
                call(*inputs(), mask)
    with dynamo_config.patch(error_on_nested_fx_trace=False):
        assert torch.equal(call(*inputs(), mask), before)


def at_context(call, num_context: int) -> torch.Tensor:
    """A call whose context length is its own, so that it needs a graph of its own."""
    mask = block_mask(some_anchors(), MaskRule(num_context, 4))
    out = call(*inputs(keys=num_context + 12), mask)
    assert isinstance(out, torch.Tensor)
    return out


@pytest.mark.parametrize(("fullgraph", "fail"), [(False, False), (False, True), (True, False)])
def test_the_recompile_limit_ends_in_the_refusal(fullgraph, fail):
    call = refusing(compiled(fullgraph=fullgraph), heads=HEADS)
    with dynamo_config.patch(recompile_limit=1, fail_on_recompile_limit_hit=fail):
        first = at_context(call, 40)
        with pytest.raises(DenseAttentionRefused, match=refusal_of(HEADS * 12 * 53 * 4)):
            at_context(call, 41)
        assert torch.equal(at_context(call, 40), first)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("fail", [False, True])
def test_below_the_recompile_limit_the_wrapper_says_nothing(fail):
    call = refusing(compiled(), heads=HEADS)
    with dynamo_config.patch(recompile_limit=2, fail_on_recompile_limit_hit=fail):
        for num_context in (40, 41):
            q, k, v = inputs(keys=num_context + 12)
            expected = attend(q, k, v, dense_mask(some_anchors(), MaskRule(num_context, 4)))
            torch.testing.assert_close(at_context(call, num_context), expected)


def test_the_wrapper_leaves_other_errors_as_they_are():
    def fails(_mask: object) -> None:
        raise KeyError("a")

    with pytest.raises(KeyError):
        refusing(fails)(block_mask(some_anchors(), RULE))


def test_the_size_of_dense_attention_is_that_of_float32_scores():
    assert dense_bytes(batch=1, heads=32, queries=32768, keys=72768) == 305_211_113_472


def test_dense_attention_over_the_limit_is_refused_with_the_bytes():
    with pytest.raises(DenseAttentionRefused, match=r"305,211,113,472 bytes \(284\.25 GiB\).*data\.anchors"):
        refuse_dense(device="cpu", batch=1, heads=32, queries=32768, keys=72768, limit_bytes=2 << 30)


def test_dense_attention_on_a_gpu_is_refused_however_small():
    with pytest.raises(DenseAttentionRefused, match=r"attention on cuda.*64 bytes.*compiled flex") as refused:
        refuse_dense(device="cuda", batch=1, heads=1, queries=4, keys=4, limit_bytes=1 << 40)
    assert not re.search("no compiled|yet", str(refused.value))


@pytest.mark.parametrize("keys", [4, 8])
def test_dense_attention_up_to_the_limit_is_allowed(keys):
    refuse_dense(device="cpu", batch=1, heads=1, queries=4, keys=keys, limit_bytes=128)


def test_a_backend_that_runs_the_graph_as_it_is_would_be_dense_on_a_gpu():
    with pytest.raises(DenseAttentionRefused, match=r"aot_eager.*64 bytes.*compile_backend=inductor"):
        refuse_backend(device="cuda", backend="aot_eager", batch=1, heads=1, queries=4, keys=4)


@pytest.mark.parametrize(("device", "backend"), [("cuda", "inductor"), ("cpu", "aot_eager")])
def test_a_backend_that_fuses_and_any_on_the_cpu_are_allowed(device, backend):
    refuse_backend(device=device, backend=backend, batch=1, heads=1, queries=4, keys=4)
