import random

import pytest
import torch
from torch import Tensor
from torch._dynamo import config as dynamo_config
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import BlockMask

from tests.torch.maskcases import packed_batch, random_case
from trainer.attention import attend, dense_bytes, make_mask, oracle, refusing
from trainer.batch import Batch
from trainer.blocks import Anchors, make_blocks, sample_anchors, spread_anchors
from trainer.errors import ConfigInvalid, DenseAttentionRefused
from trainer.failures import _is_tracing, _TracingThread
from trainer.flash import FlashMask, flash_mask, require_flash
from trainer.masks import MaskRule, block_mask, dense_mask
from trainer.seeds import generator

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # A compiler's own warnings are not ours; flex attention's about its dense form would be.
    pytest.mark.filterwarnings("default", "error:flex_attention called without"),
]

CUDA = torch.device("cuda")
# Relative errors allowed against float64: of the norm, and of the largest element.
BOUNDS = {torch.bfloat16: (1e-2, 3e-2), torch.float32: (2e-5, 2e-4)}
CASES = [  # dtype, rows, context, block, slots, window
    (torch.bfloat16, 1, 512, 8, 37, None),
    (torch.bfloat16, 2, 1000, 10, 50, 64),
    (torch.bfloat16, 1, 4096, 32, 64, None),
    (torch.bfloat16, 1, 4096, 32, 64, 512),
    (torch.float32, 1, 2048, 16, 64, None),
    (torch.float32, 2, 640, 16, 24, 100),
]
SEED_CONTEXT, SEED_SLOTS, SEED_BLOCK, SEED_HEADS, SEED_KEY_HEADS, SEED_WIDTH = 40064, 1024, 32, 32, 8, 128
SEED_QUERIES = SEED_SLOTS * SEED_BLOCK


@pytest.fixture(autouse=True)
def fresh_dynamo():
    """Nothing compiled, nothing counted."""
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def compiled():
    """Attention as the trainer compiles it."""
    return torch.compile(attend, backend="inductor", fullgraph=True, dynamic=False)


def documents(rows: int, context: int, seed: int) -> Batch:
    """Rows of one to some ten documents and padding."""
    rng = random.Random(seed)
    lengths = []
    for _ in range(rows):
        left, row = context - rng.randrange(context // 8), []
        while left > 0:
            row.append(min(left, rng.randint(8, context // rng.choice((1, 4, 16)))))
            left -= row[-1]
        lengths.append(row)
    return packed_batch(lengths, context, seed)


def draw_anchors(rows: int, context: int, slots: int, step: int, *, empty: int = 0) -> Anchors:
    """Anchors of random documents, the last `empty` slots of the first row without one."""
    anchors = sample_anchors(documents(rows, context, step).to(CUDA), slots, generator(1, "anchors", step))
    if empty:
        for name in ("index", "keep", "starts", "ends", "positions"):
            getattr(anchors, name)[0, -empty:] = 0
    return anchors


def inputs(
    dtype: torch.dtype, rows: int, queries: int, keys: int, seed: int = 0, width: int = 0
) -> list[Tensor]:
    """Queries of 8 heads, keys and values of 2, and the gradient of the output."""
    draw = torch.Generator(CUDA).manual_seed(seed)
    width = width or (128 if dtype == torch.bfloat16 else 64)
    sizes = ((8, queries), (2, keys), (2, keys), (8, queries))
    return [
        torch.randn(rows, heads, length, width, generator=draw, device=CUDA).to(dtype)
        for heads, length in sizes
    ]


def with_gradients(call, tensors: list[Tensor], mask: object) -> list[Tensor]:
    """Output and gradients of queries, keys and values."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors[:3]]
    out = call(*leaves, mask)
    out.backward(tensors[3])
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def by_oracle(tensors: list[Tensor], anchors: Anchors, rule: MaskRule) -> list[Tensor]:
    """The same in float64 by dense attention."""
    with oracle():
        return with_gradients(attend, [tensor.double() for tensor in tensors], dense_mask(anchors, rule))


def assert_close(ours: list[Tensor], exact: list[Tensor]) -> None:
    norm_bound, largest_bound = BOUNDS[ours[0].dtype]
    for name, mine, other in zip(("out", "dq", "dk", "dv"), ours, exact, strict=True):
        error = mine.double() - other
        assert mine.isfinite().all(), name
        assert error.norm() <= norm_bound * other.norm(), f"{name}: {error.norm() / other.norm():.2e}"
        assert error.abs().max() <= largest_bound * other.abs().max(), f"{name}: {error.abs().max():.2e}"


@pytest.mark.parametrize(("dtype", "rows", "context", "block", "slots", "window"), CASES)
def test_flex_is_the_dense_oracle_forward_and_backward(dtype, rows, context, block, slots, window):
    rule = MaskRule(context, block, causal=window is not None, window=window)
    anchors = draw_anchors(rows, context, slots, step=context, empty=3)
    tensors = inputs(dtype, rows, slots * block, context + slots * block)
    mask = make_mask(anchors, rule, CUDA)
    assert isinstance(mask, BlockMask)
    assert_close(with_gradients(compiled(), tensors, mask), by_oracle(tensors, anchors, rule))


def needs_flash() -> None:
    try:
        require_flash(CUDA, torch.bfloat16, 128)
    except ConfigInvalid as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("dtype", "rows", "context", "block", "slots", "window"),
    [*(case for case in CASES if case[0] == torch.bfloat16), (torch.bfloat16, 2, 8192, 16, 100, None)],
)
@pytest.mark.parametrize("compiles", [False, True])
def test_flash_is_the_dense_oracle_forward_and_backward(dtype, rows, context, block, slots, window, compiles):
    needs_flash()
    rule = MaskRule(context, block, causal=window is not None, window=window)
    anchors = draw_anchors(rows, context, slots, step=context, empty=3)
    tensors = inputs(dtype, rows, slots * block, context + slots * block)
    mask = make_mask(anchors, rule, CUDA, flash=True)
    assert isinstance(mask, FlashMask)
    call = compiled() if compiles else attend
    assert_close(with_gradients(call, tensors, mask), by_oracle(tensors, anchors, rule))


@pytest.mark.parametrize(("context", "slots"), [(900, 42), (128, 16)])
def test_flash_is_the_dense_oracle_at_the_other_head_dim_and_with_a_single_tile(context, slots):
    needs_flash()
    rule = MaskRule(context, 8)
    anchors = draw_anchors(2, context, slots, step=1, empty=3)
    tensors = inputs(torch.bfloat16, 2, slots * 8, context + slots * 8, width=64)
    mask = flash_mask(anchors, rule)
    assert_close(with_gradients(attend, tensors, mask), by_oracle(tensors, anchors, rule))


def test_steps_of_varying_documents_compile_nothing_for_flash_either():
    needs_flash()
    call, rule = compiled(), MaskRule(2048, 16)
    tensors = inputs(torch.bfloat16, 1, 1024, 3072)
    with_gradients(call, tensors, flash_mask(draw_anchors(1, 2048, 64, 0), rule))
    with torch.compiler.set_stance("fail_on_recompile"):
        for step in range(1, 41):
            anchors = draw_anchors(1, 2048, 64, step, empty=(0, 5, 64)[step % 3])
            got = with_gradients(call, tensors, flash_mask(anchors, rule))
            assert_close(got, by_oracle(tensors, anchors, rule))
    assert counters["stats"]["unique_graphs"] == 1


def test_two_hundred_steps_of_varying_documents_compile_nothing():
    call, rule = compiled(), MaskRule(2048, 16)
    tensors = inputs(torch.bfloat16, 1, 1024, 3072)
    with_gradients(call, tensors, make_mask(draw_anchors(1, 2048, 64, 0), rule, CUDA))
    assert counters["stats"]["unique_graphs"] == 1
    with torch.compiler.set_stance("fail_on_recompile"):
        for step in range(1, 201):
            anchors = draw_anchors(1, 2048, 64, step, empty=(0, 5, 64)[step % 3])
            got = with_gradients(call, tensors, make_mask(anchors, rule, CUDA))
            assert all(tensor.isfinite().all() for tensor in got)
            if step % 40 == 0:
                assert_close(got, by_oracle(tensors, anchors, rule))
    assert counters["stats"]["unique_graphs"] == 1


def test_empty_slots_give_neither_nan_nor_gradient():
    call, rule = compiled(), MaskRule(512, 8)
    anchors = draw_anchors(1, 512, 37, 1, empty=20)
    weighted = inputs(torch.bfloat16, 1, 296, 808)
    weighted[3][:, :, -20 * 8 :] = 0  # the loss has no weight there
    mask = make_mask(anchors, rule, CUDA)
    plain = with_gradients(call, weighted, mask)
    for tensor in weighted[:3]:
        tensor[:, :, -20 * 8 :] = 10
    for before, after in zip(plain[1:], with_gradients(call, weighted, mask)[1:], strict=True):
        assert before.isfinite().all()
        assert torch.equal(before, after)
        assert not before[:, :, -20 * 8 :].any()


# -- the mask


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_the_mask_is_the_one_made_on_the_cpu(seed):
    anchors, rule = random_case(seed)
    names = ("index", "keep", "starts", "ends", "positions")
    there = block_mask(Anchors(*(getattr(anchors, name).to(CUDA) for name in names)), rule)
    here = block_mask(anchors, rule)
    for side in ("kv_num_blocks", "kv_indices", "q_num_blocks", "q_indices"):
        for name in (side, f"full_{side}"):
            assert torch.equal(getattr(there, name).cpu(), getattr(here, name)), name


def test_anchors_are_those_drawn_on_the_cpu_and_nothing_waits_for_the_device():
    batch = documents(2, 1024, 3)
    expected = sample_anchors(batch, 40, generator(1, "anchors", 0)).index
    there = batch.to(CUDA)
    make_mask(sample_anchors(there, 40, generator(1, "anchors", 0)), MaskRule(1024, 8), CUDA)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        anchors = sample_anchors(there, 40, generator(1, "anchors", 0))
        blocks = make_blocks(there, anchors, block_size=8, mask_token=256)
        spread_anchors(there, 40, 8)
        for rule in (MaskRule(1024, 8), MaskRule(1024, 8, causal=True, window=64)):
            make_mask(anchors, rule, CUDA)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(anchors.index.cpu(), expected)
    assert blocks.weights.any()


@pytest.mark.parametrize("window", [None, 2048])
def test_the_mask_of_the_seed_shape_is_small_and_its_time_is_told(window, capsys):
    anchors = seed_anchors()
    rule = MaskRule(SEED_CONTEXT, SEED_BLOCK, causal=window is not None, window=window)
    block_mask(anchors, rule)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(20):
        block_mask(anchors, rule)
    end.record()
    end.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    with capsys.disabled():
        print(
            f"\nblock_mask at {SEED_CONTEXT} x {SEED_SLOTS} x {SEED_BLOCK}, window {window}: "
            f"{start.elapsed_time(end) / 20:.3f} ms, {peak / 2**20:.1f} MiB above what was there"
        )
    assert peak < 64 << 20


# -- what is refused, at the size at which it matters


def seed_anchors() -> Anchors:
    batch = packed_batch([[SEED_CONTEXT]], SEED_CONTEXT).to(CUDA)
    return sample_anchors(batch, SEED_SLOTS, generator(1, "anchors", 0))


def seed_inputs(context: int = SEED_CONTEXT) -> list[Tensor]:
    """Zeros in the seed's shape, forward alone."""
    sizes = ((SEED_HEADS, SEED_QUERIES), *((SEED_KEY_HEADS, context + SEED_QUERIES),) * 2)
    return [
        torch.zeros(1, heads, length, SEED_WIDTH, device=CUDA, dtype=torch.bfloat16)
        for heads, length in sizes
    ]


def assert_refused(call, context: int = SEED_CONTEXT) -> None:
    """The error names the bytes, and nothing near them was asked for."""
    tensors, mask = seed_inputs(context), block_mask(seed_anchors(), MaskRule(context, SEED_BLOCK))
    needed = dense_bytes(batch=1, heads=SEED_HEADS, queries=SEED_QUERIES, keys=context + SEED_QUERIES)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with pytest.raises(DenseAttentionRefused, match=rf"{needed:,} bytes \({needed / 2**30:.2f} GiB\)"):
        call(*tensors, mask)
    assert torch.cuda.max_memory_allocated() - before < 64 << 20


def assert_runs(call) -> None:
    out = call(*seed_inputs(), block_mask(seed_anchors(), MaskRule(SEED_CONTEXT, SEED_BLOCK)))
    assert out.shape == (1, SEED_HEADS, SEED_QUERIES, SEED_WIDTH)
    assert not out.any()


def test_the_uncompiled_call_is_refused():
    assert_refused(attend)


def test_a_tracer_in_another_thread_ends_in_the_refusal():
    call = compiled()
    assert_runs(call)
    with _TracingThread(), dynamo_config.patch(error_on_nested_fx_trace=False):
        if _is_tracing():  # up to torch 2.13; from 2.14 on no thread takes another's tracing for its own
            assert_refused(call)
    assert_runs(call)


@pytest.mark.parametrize(("fullgraph", "fail"), [(False, False), (True, True)])
def test_the_recompile_limit_ends_in_the_refusal(fullgraph, fail):
    call = refusing(
        torch.compile(attend, backend="inductor", fullgraph=fullgraph, dynamic=False), heads=SEED_HEADS
    )
    with dynamo_config.patch(recompile_limit=1, fail_on_recompile_limit_hit=fail):
        assert_runs(call)
        assert_refused(call, SEED_CONTEXT + 128)
        assert_runs(call)


def test_a_dense_mask_is_refused_but_for_the_oracle():
    anchors, rule = draw_anchors(1, 512, 8, 0), MaskRule(512, 8)
    q, k, v, _ = inputs(torch.bfloat16, 1, 64, 576)
    with pytest.raises(DenseAttentionRefused, match=f"{8 * 64 * 576 * 4:,} bytes"):
        attend(q, k, v, dense_mask(anchors, rule))
    with oracle():
        assert attend(q, k, v, dense_mask(anchors, rule)).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_causal_attention_without_a_mask_keeps_no_scores(dtype):
    q, k, v, _ = inputs(dtype, 1, 8192, 8192)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = attend(q, k, v, None)
    assert torch.cuda.max_memory_allocated() - before < 256 << 20  # the scores are 2 GiB
    q, k, v = (tensor[:, :, :256].double() for tensor in (q, k, v))
    with oracle():
        exact = attend(q, k, v, None)
    error = out[:, :, :256].double() - exact
    assert error.norm() <= 1e-2 * exact.norm()
