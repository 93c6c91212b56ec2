import pytest
import torch

from tests.torch.parts import random_tokens
from trainer.attention import dense_bytes, draft_mask, refuse_dense
from trainer.blocks import make_blocks, sample_anchors, spread_anchors
from trainer.errors import DenseAttentionRefused
from trainer.loss import accepted_lengths, decay_weights, weighted_loss
from trainer.model import target_layer_ids
from trainer.seeds import generator

pytestmark = pytest.mark.torch


def oracle(anchors: list[int], keep: list[bool], context: int, block: int, *, causal: bool) -> torch.Tensor:
    """The mask rule, spelled out a cell at a time."""
    queries = len(anchors) * block
    mask = torch.zeros(queries, context + queries, dtype=torch.bool)
    for query in range(queries):
        slot, offset = divmod(query, block)
        for key in range(context):
            mask[query, key] = keep[slot] and key < anchors[slot]
        for other in range(queries):
            same = other // block == slot
            mask[query, context + other] = same and (not causal or other % block <= offset)
    return mask


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("anchors", "keep", "context", "block"),
    [
        ([0], [True], 5, 1),
        ([1, 3, 7], [True, True, True], 9, 4),
        ([2, 2], [True, True], 4, 3),
        ([5, 0, 0], [True, False, False], 6, 2),
        ([0, 6], [True, True], 7, 7),
    ],
)
def test_the_mask_is_the_rule_spelled_out(anchors, keep, context, block, causal):
    mask = draft_mask(
        torch.tensor([anchors]), torch.tensor([keep]), num_context=context, block_size=block, causal=causal
    )
    assert mask.shape == (1, 1, len(anchors) * block, context + len(anchors) * block)
    assert torch.equal(mask[0, 0], oracle(anchors, keep, context, block, causal=causal))


def test_no_row_of_the_mask_is_empty_so_that_softmax_is_finite():
    mask = draft_mask(torch.tensor([[0, 0]]), torch.tensor([[True, False]]), num_context=3, block_size=2)
    assert mask.any(dim=-1).all()


def test_anchors_are_sorted_distinct_and_fill_every_slot():
    loss_mask = torch.ones(3, 30, dtype=torch.bool)
    anchors, keep = sample_anchors(loss_mask, 8, generator(1, "anchors", 0))
    assert keep.all()
    assert (anchors.diff(dim=1) > 0).all()
    assert anchors.max() <= 28


def test_a_row_with_few_candidates_keeps_the_shape_and_says_which_slots_are_real():
    loss_mask = torch.zeros(1, 30, dtype=torch.bool)
    loss_mask[0, 10:13] = True
    anchors, keep = sample_anchors(loss_mask, 8, generator(1, "anchors", 0))
    assert anchors.shape == keep.shape == (1, 8)
    assert anchors[keep].tolist() == [10, 11]
    assert keep[0, :2].all()


def test_anchors_are_a_function_of_the_step_alone():
    loss_mask = torch.ones(2, 30, dtype=torch.bool)
    first = sample_anchors(loss_mask, 8, generator(1, "anchors", 7))[0]
    assert torch.equal(first, sample_anchors(loss_mask, 8, generator(1, "anchors", 7))[0])
    assert not torch.equal(first, sample_anchors(loss_mask, 8, generator(1, "anchors", 8))[0])


def test_a_block_is_its_anchor_then_masks_and_its_labels_are_the_text_at_the_same_positions():
    tokens = torch.arange(100, 110)[None]
    loss_mask = torch.ones(1, 10, dtype=torch.bool)
    anchors, keep = torch.tensor([[2, 8]]), torch.tensor([[True, True]])
    blocks = make_blocks(tokens, loss_mask, anchors, keep, block_size=4, mask_token=256)
    assert blocks.tokens.tolist() == [[102, 256, 256, 256, 108, 256, 256, 256]]
    assert blocks.positions.tolist() == [[2, 3, 4, 5, 8, 9, 10, 11]]
    assert blocks.labels.tolist() == [[102, 103, 104, 105, 108, 109, 0, 0]]
    assert blocks.weights.tolist() == [[0, 1, 1, 1, 0, 1, 0, 0]]


def test_empty_slots_and_tokens_without_loss_have_no_weight():
    tokens, loss_mask = random_tokens(1, 10), torch.ones(1, 10, dtype=torch.bool)
    loss_mask[0, 4] = False
    anchors, keep = torch.tensor([[2, 0]]), torch.tensor([[True, False]])
    blocks = make_blocks(tokens, loss_mask, anchors, keep, block_size=4, mask_token=256)
    assert blocks.weights.tolist() == [[0, 1, 0, 1, 0, 0, 0, 0]]


def test_evaluation_anchors_leave_room_for_a_whole_block():
    anchors, keep = spread_anchors(2, 40, 5, 8)
    assert keep.all()
    assert anchors.max() == 32


@pytest.mark.parametrize(
    ("layers", "count", "ids"),
    [(36, 5, (1, 9, 17, 25, 33)), (64, 5, (1, 16, 31, 46, 61)), (8, 3, (1, 3, 5)), (36, 1, (18,))],
)
def test_target_layers_follow_the_published_rule(layers, count, ids):
    assert target_layer_ids(layers, count) == ids


def test_weights_decay_from_one_and_the_anchor_has_none():
    expected = torch.tensor([0.0, 1.0, 0.7788008, 0.6065307])
    torch.testing.assert_close(decay_weights(4, 4.0), expected)


def test_the_loss_is_the_weighted_mean_of_cross_entropies():
    logits = torch.tensor([[[2.0, 0.0], [0.0, 0.0], [5.0, -5.0]]])
    weights = torch.tensor([[1.0, 0.5, 0.0]])
    expected = (torch.log1p(torch.exp(torch.tensor(-2.0))) + 0.5 * torch.log(torch.tensor(2.0))) / 1.5
    torch.testing.assert_close(weighted_loss(logits, torch.tensor([[0, 1, 1]]), weights), expected)


def test_soft_labels_that_are_certain_are_hard_labels():
    logits, labels, weights = torch.randn(1, 3, 5), torch.tensor([[0, 4, 2]]), torch.ones(1, 3)
    soft = torch.nn.functional.one_hot(labels, 5).float()
    torch.testing.assert_close(weighted_loss(logits, soft, weights), weighted_loss(logits, labels, weights))


def test_a_step_in_which_nothing_counts_has_no_loss_rather_than_nan():
    assert weighted_loss(torch.randn(1, 2, 5), torch.tensor([[0, 1]]), torch.zeros(1, 2)) == 0


def test_acceptance_ends_at_the_first_difference():
    drafted = torch.tensor([[1, 2, 3], [9, 2, 3], [1, 9, 3]])
    assert accepted_lengths(drafted, torch.tensor([1, 2, 3])).tolist() == [3, 0, 1]


def test_the_size_of_dense_attention_is_that_of_float32_scores():
    assert dense_bytes(batch=1, heads=32, queries=32768, keys=72768) == 305_211_113_472


def test_dense_attention_over_the_limit_is_refused_with_the_bytes():
    with pytest.raises(DenseAttentionRefused, match=r"305,211,113,472 bytes \(284\.25 GiB\).*data\.anchors"):
        refuse_dense(device="cpu", batch=1, heads=32, queries=32768, keys=72768, limit_bytes=2 << 30)


def test_dense_attention_on_a_gpu_is_refused_however_small():
    with pytest.raises(DenseAttentionRefused, match=r"attention on cuda.*64 bytes"):
        refuse_dense(device="cuda", batch=1, heads=1, queries=4, keys=4, limit_bytes=1 << 40)


@pytest.mark.parametrize("keys", [4, 8])
def test_dense_attention_up_to_the_limit_is_allowed(keys):
    refuse_dense(device="cpu", batch=1, heads=1, queries=4, keys=keys, limit_bytes=128)
