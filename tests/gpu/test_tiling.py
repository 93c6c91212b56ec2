"""The mask's kernels on a GPU against PyTorch's own form, over random shapes, and what they cost."""

import random

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.torch.maskcases import make_anchors, random_case, random_row
from trainer import tiling
from trainer.blocks import Anchors
from trainer.flash import flash_mask
from trainer.masks import TILE, MaskRule, block_mask, dense_mask, key_intervals, plain_intervals, plain_tiles

pytestmark = [
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

NAMES = ("index", "keep", "starts", "ends", "positions")
BLOCKS = (1, 5, 8, 10, 16, 24, 32, 48, 64, 100, 128, 200)
SEED = MaskRule(40064, 32)


def on_gpu(anchors: Anchors) -> Anchors:
    return Anchors(*(getattr(anchors, name).cuda() for name in NAMES))


def large_case(seed: int) -> tuple[Anchors, MaskRule]:
    """Up to 140,000 keys: lists of several times what a program looks at at a time."""
    rng = random.Random(seed)
    block = rng.choice(BLOCKS)
    context = rng.choice((1000, 4096, 8191, 40064, 66001, 100_000))
    slots = rng.randint(1, max(1, 40_000 // block if block > 1 else 3000))
    rows = [random_row(rng, slots, context) for _ in range(rng.choice((1, 1, 2, 4)))]
    index, keep, starts = (list(column) for column in zip(*rows, strict=True))
    window = rng.choice((None, None, 1, 100, 2048, 30_000))
    return make_anchors(index, keep, starts), MaskRule(
        context, block, causal=rng.random() < 0.5, window=window
    )


def seed_anchors(draw: int) -> Anchors:
    """1,024 anchors of one document of 40,064 tokens, the last ones empty in some draws."""
    random_ = torch.Generator().manual_seed(draw)
    index = torch.randperm(40063, generator=random_)[:1024].sort().values[None]
    keep = torch.arange(1024)[None] < 1024 - 100 * (draw % 3)
    zeros = torch.zeros_like(index)
    index = index.masked_fill(~keep, 0)
    return on_gpu(Anchors(index, keep, zeros, zeros + 40064, index))


def assert_same(anchors: Anchors, rule: MaskRule) -> None:
    there = on_gpu(anchors)
    assert tiling.takes(there)
    ours, theirs = tiling.tile_lists(there, rule, TILE), plain_tiles(there, rule)
    for name, mine, other in zip(ours._fields, ours, theirs, strict=True):
        assert (mine.dtype, mine.shape, mine.stride()) == (other.dtype, other.shape, other.stride()), name
        assert mine.data_ptr() % 16 == 0, name
        assert torch.equal(mine, other), (name, rule, anchors.index.shape)
    assert torch.equal(key_intervals(there, rule), plain_intervals(there, rule)), rule


def test_the_kernels_are_the_closed_form_at_three_hundred_small_shapes():
    for seed in range(300):
        assert_same(*random_case(seed))


def test_the_kernels_are_the_closed_form_at_large_shapes():
    for seed in range(30):
        assert_same(*large_case(seed))


@pytest.mark.parametrize("rule", [SEED, MaskRule(40064, 32, causal=True, window=2048)])
def test_the_kernels_are_the_closed_form_at_the_seed_shape(rule):
    for draw in range(3):
        assert_same(seed_anchors(draw), rule)


def test_the_function_that_goes_with_the_tiles_is_the_same():
    for seed in range(0, 60, 7):
        anchors, rule = random_case(seed)
        there = on_gpu(anchors)
        expected = dense_mask(anchors, rule)
        rows, _, queries, keys = expected.shape
        mask = block_mask(there, rule)
        assert mask.seq_lengths == (queries, keys)
        row = torch.arange(rows, device="cuda")[:, None, None, None]
        query = torch.arange(queries, device="cuda", dtype=torch.int32)[:, None]
        key = torch.arange(keys, device="cuda", dtype=torch.int32)
        found = mask.mask_mod(row, row.new_zeros(()), query, key)
        assert torch.equal(found.cpu(), expected), seed


def test_each_kind_of_mask_is_compiled_once_whatever_its_numbers(monkeypatch):
    from triton import knobs

    def build(anchors: Anchors, rule: MaskRule) -> None:
        block_mask(anchors, rule)
        flash_mask(anchors, rule)

    anchors = on_gpu(random_case(0)[0])
    for causal in (False, True):
        for window in (None, 7):
            build(anchors, MaskRule(256, 8, causal=causal, window=window))
    compiled: list[str] = []
    monkeypatch.setattr(
        knobs.runtime, "jit_cache_hook", lambda *_args, **told: compiled.append(str(told["repr"]))
    )
    for seed in range(60):
        anchors, rule = random_case(seed)
        build(on_gpu(anchors), rule)
    odd = on_gpu(make_anchors([[4, 6, 9]], [[True] * 3], [[0, 5, 5]]))
    shifted = Anchors(*(getattr(odd, name)[:, 1:] for name in NAMES))  # no longer begin at a multiple of 16
    assert shifted.starts.data_ptr() % 16
    build(shifted, MaskRule(16, 16))
    assert compiled == []


class Operators(TorchDispatchMode):
    """Notes which of PyTorch's operators are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("window", [None, 2048])
def test_a_mask_of_the_seed_shape_takes_no_operator_no_wait_and_little_memory(window):
    rule = MaskRule(40064, 32, causal=window is not None, window=window)
    anchors = seed_anchors(0)
    block_mask(anchors, rule)
    flash_mask(anchors, rule)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.set_sync_debug_mode("error")
    try:
        mask = block_mask(anchors, rule)
        flash_mask(anchors, rule)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.max_memory_allocated() - before < 8 << 20
    assert mask.shape == (1, 1, 32768, 72832)
    with Operators() as called:
        block_mask(anchors, rule)
        flash_mask(anchors, rule)
    assert set(called.names) == {"aten.empty.memory_format"}  # and a kernel, or two
