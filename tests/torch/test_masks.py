import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.torch.maskcases import make_anchors, random_case, spelled_out
from trainer.masks import TILE, MaskRule, block_mask, dense_mask, mask_mod

pytestmark = pytest.mark.torch

SIDES = ("kv_num_blocks", "kv_indices", "q_num_blocks", "q_indices")
TENSORS = [*SIDES, *(f"full_{name}" for name in SIDES)]


def full_tiles(mask: BlockMask) -> torch.Tensor:
    """How many tiles each tile of queries sees wholly, [R, 1, I]."""
    assert mask.full_kv_num_blocks is not None
    return mask.full_kv_num_blocks


def by_grid(anchors, rule) -> BlockMask:
    """PyTorch's own, from a grid of all queries and keys."""
    rows, slots = anchors.index.shape
    queries = slots * rule.block_size
    keys = rule.num_context + queries
    return create_block_mask(mask_mod(anchors, rule), rows, None, queries, keys, device="cpu")


def assert_same(ours: BlockMask, theirs: BlockMask) -> None:
    assert ours.seq_lengths == theirs.seq_lengths
    assert ours.BLOCK_SIZE == theirs.BLOCK_SIZE
    for name in TENSORS:
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape), name
        assert torch.equal(mine, other), name
        assert mine.is_contiguous(), name


@pytest.mark.parametrize("first", range(0, 400, 40))
def test_the_closed_form_is_what_create_block_mask_makes_of_the_grid(first):
    for seed in range(first, first + 40):
        anchors, rule = random_case(seed)
        assert_same(block_mask(anchors, rule), by_grid(anchors, rule))


@pytest.mark.parametrize("block_size", [8, 10, 16, 32])
@pytest.mark.parametrize("sliding", [False, True])
def test_at_a_size_with_many_full_tiles_the_closed_form_is_that_of_the_grid_too(block_size, sliding):
    slots = 640 // block_size
    index = [[2000 + slot for slot in range(slots)], [1000 + 9 * slot for slot in range(slots)]]
    anchors = make_anchors(index, [[True] * slots] * 2, [[0] * slots, [130] * slots])
    rule = MaskRule(2100, block_size, causal=sliding, window=900 if sliding else None)
    ours = block_mask(anchors, rule)
    assert int(full_tiles(ours).sum()) > 20
    assert_same(ours, by_grid(anchors, rule))


def test_a_tile_that_lies_in_one_wide_block_is_full():
    anchors = make_anchors([[3]], [[True]], [[0]])
    ours = block_mask(anchors, MaskRule(128, 256))
    assert full_tiles(ours).tolist() == [[[2, 2]]]
    assert_same(ours, by_grid(anchors, MaskRule(128, 256)))


def test_tiles_hold_every_visible_cell_and_the_two_kinds_of_tile_exclude_each_other():
    anchors, rule = random_case(33)
    ours = block_mask(anchors, rule)
    mask = dense_mask(anchors, rule)
    padded = torch.nn.functional.pad(mask, (0, -mask.shape[3] % TILE, 0, -mask.shape[2] % TILE))
    tiles = padded.unflatten(3, (-1, TILE)).unflatten(2, (-1, TILE))
    assert torch.equal(ours.to_dense().bool(), tiles.any(dim=5).any(dim=3))
    total = int(ours.kv_num_blocks.sum() + full_tiles(ours).sum())
    assert total == int(ours.to_dense().sum())


@pytest.mark.parametrize("seed", range(20))
def test_the_mask_is_the_rule_spelled_out(seed):
    anchors, rule = random_case(seed)
    assert torch.equal(dense_mask(anchors, rule), spelled_out(anchors, rule))


@pytest.mark.parametrize("seed", range(20, 40))
def test_the_function_that_kernels_are_made_of_gives_the_same_grid(seed):
    anchors, rule = random_case(seed)
    expected = dense_mask(anchors, rule)
    rows, _, queries, keys = expected.shape
    assert torch.equal(create_mask(mask_mod(anchors, rule), rows, None, queries, keys, "cpu"), expected)


def test_a_query_past_the_last_block_may_be_asked_about():
    anchors, rule = make_anchors([[4, 6]], [[True, True]], [[0, 5]]), MaskRule(9, 10)
    grid = create_mask(mask_mod(anchors, rule), 1, None, TILE, 29, "cpu")
    assert torch.equal(grid[:, :, :20], dense_mask(anchors, rule))


def test_no_row_of_the_mask_is_empty_so_that_softmax_is_finite():
    anchors = make_anchors([[0, 0]], [[True, False]], [[0, 0]])
    for rule in (MaskRule(3, 2), MaskRule(3, 2, causal=True, window=1)):
        assert dense_mask(anchors, rule).any(dim=-1).all()


def test_a_window_in_which_nothing_is_seen_is_refused():
    with pytest.raises(ValueError, match=r"window: 0.*take 1 or more"):
        MaskRule(8, 2, window=0)


class Largest(TorchDispatchMode):
    """Notes the bytes of the largest tensor that any operation returns."""

    nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            if isinstance(result, torch.Tensor):
                self.nbytes = max(self.nbytes, result.untyped_storage().nbytes())
        return results


def test_the_mask_of_the_seed_shape_takes_no_large_tensor():
    slots = 1024
    index = [sorted(torch.randperm(40063)[:slots].tolist())]
    anchors = make_anchors(index, [[True] * slots], [[0] * slots])
    with Largest() as largest:
        mask = block_mask(anchors, MaskRule(40064, 32))
    assert mask.shape == (1, 1, 32768, 72832)
    assert 2 << 20 < largest.nbytes < 16 << 20


def test_a_grid_of_that_shape_would_not_pass_as_small():
    with Largest() as largest:
        dense_mask(*random_case(40))
    assert largest.nbytes > dense_mask(*random_case(40)).numel()
