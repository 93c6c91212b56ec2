import dataclasses

import pytest
import torch

from tests.torch.maskcases import packed_batch
from trainer.batch import Document, pack
from trainer.blocks import Anchors, make_blocks, sample_anchors, spread_anchors
from trainer.masks import MaskRule, block_mask, dense_mask
from trainer.seeds import generator

pytestmark = pytest.mark.torch

FIELDS = ("index", "keep", "starts", "ends", "positions")


def draw(batch, slots, step=0) -> Anchors:
    return sample_anchors(batch, slots, generator(1, "anchors", step))


def supervised_batch(*rows, context):
    """Each row a list of documents, each a list of 0 and 1: which tokens are supervised."""
    documents = [
        [Document(torch.arange(len(marks)) + 100, torch.tensor(marks, dtype=torch.bool)) for marks in row]
        for row in rows
    ]
    return pack(documents, context)


def test_anchors_are_sorted_distinct_and_fill_every_slot():
    anchors = draw(packed_batch([[30], [30], [30]], 30), 8)
    assert anchors.keep.all()
    assert (anchors.index.diff(dim=1) > 0).all()
    assert anchors.index.max() <= 28


def test_an_anchor_and_the_next_token_are_supervised_and_of_one_document():
    batch = supervised_batch([[0, 1, 1, 0, 1], [1, 1, 1]], [[1], [1, 1]], context=10)
    anchors = draw(batch, 6)
    assert anchors.index[0][anchors.keep[0]].tolist() == [1, 5, 6]
    assert anchors.index[1][anchors.keep[1]].tolist() == [1]


def test_an_anchor_knows_its_document_and_its_position_there():
    anchors = draw(supervised_batch([[0, 0, 0], [0, 1, 1, 0]], context=9), 2)
    assert [getattr(anchors, name).tolist() for name in FIELDS] == [
        *([[4, 0]], [[True, False]], [[3, 0]], [[7, 0]], [[1, 0]])
    ]


def test_padding_has_no_anchors_and_the_shape_stays():
    anchors = draw(packed_batch([[4], [], [20]], 20), 12)
    assert anchors.keep.sum(dim=1).tolist() == [3, 0, 12]
    assert all(getattr(anchors, name).shape == (3, 12) for name in FIELDS)
    assert all(not getattr(anchors, name)[~anchors.keep].any() for name in FIELDS)


def test_more_slots_than_tokens_leave_the_rest_empty():
    anchors = draw(packed_batch([[5]], 5), 9)
    assert anchors.index.tolist() == [[0, 1, 2, 3, 0, 0, 0, 0, 0]]
    assert anchors.keep.sum() == 4


def test_each_candidate_of_a_row_is_as_likely_whatever_its_document():
    batch = packed_batch([[3, 9, 18]] * 400, 32)
    counts = torch.bincount(draw(batch, 9).index.flatten(), minlength=32)
    candidates = [*range(2), *range(3, 11), *range(12, 29)]
    assert counts.sum() == counts[candidates].sum() == 3600
    # A third of 400 rows each: 133 with a deviation of 9.4.
    assert (counts[candidates] - 400 / 3).abs().max() < 5 * 9.4


def test_anchors_are_a_function_of_the_generator_alone():
    batch = packed_batch([[30], [14, 16]], 30)
    assert torch.equal(draw(batch, 8, 7).index, draw(batch, 8, 7).index)
    assert not torch.equal(draw(batch, 8, 7).index, draw(batch, 8, 8).index)


def test_a_block_is_its_anchor_then_masks_and_its_labels_are_the_text_at_the_same_positions():
    batch = supervised_batch([[0, 0], [1] * 8], context=12)
    anchors = draw(batch, 7)
    blocks = make_blocks(batch, anchors, block_size=4, mask_token=256)
    assert anchors.index.tolist() == [[2, 3, 4, 5, 6, 7, 8]]
    assert blocks.tokens[0, :8].tolist() == [100, 256, 256, 256, 101, 256, 256, 256]
    assert blocks.positions[0, -8:].tolist() == [5, 6, 7, 8, 6, 7, 8, 9]
    assert blocks.labels[0, -8:].tolist() == [105, 106, 107, 0, 106, 107, 0, 0]
    assert blocks.label_index[0, -8:].tolist() == [7, 8, 9, 9, 8, 9, 9, 9]
    assert blocks.weights[0, -8:].tolist() == [0, 1, 1, 0, 0, 1, 0, 0]


def test_labels_never_leave_the_document_though_another_follows():
    batch = packed_batch([[5, 6, 9], [2, 17]], 20, seed=4)
    blocks = make_blocks(batch, draw(batch, 19), block_size=8, mask_token=256)
    anchors = blocks.anchors
    ends = anchors.ends.repeat_interleave(8, dim=1)
    kept = anchors.keep.repeat_interleave(8, dim=1)
    position = anchors.index.repeat_interleave(8, dim=1) + torch.arange(8).repeat(19)
    assert not blocks.weights[position >= ends].any()
    assert (blocks.label_index < ends)[kept].all()
    inside = kept & (position < ends)
    assert torch.equal(blocks.labels[inside], batch.tokens.gather(1, blocks.label_index)[inside])
    assert torch.equal(blocks.positions[inside], batch.positions.gather(1, blocks.label_index)[inside])


def test_empty_slots_anchors_and_unsupervised_tokens_have_no_weight():
    batch = supervised_batch([[0, 0, 1, 1, 0, 1, 0, 0, 0, 0]], context=10)
    blocks = make_blocks(batch, draw(batch, 2), block_size=4, mask_token=256)
    assert blocks.anchors.index.tolist() == [[2, 0]]
    assert blocks.weights.tolist() == [[0, 1, 0, 1, 0, 0, 0, 0]]


def test_evaluation_anchors_leave_room_for_a_whole_block_in_their_document():
    batch = packed_batch([[40], [12, 3, 25]], 40)
    anchors = spread_anchors(batch, 5, 8)
    assert anchors.keep.all()
    assert (anchors.index.diff(dim=1) > 0).all()
    assert (anchors.index + 8 <= anchors.ends).all()
    assert anchors.index[0].tolist() == [5, 11, 18, 25, 32]


def test_evaluation_anchors_leave_out_a_documents_beginning_unless_only_there_is_room():
    batch = packed_batch([[40], [9]], 40)
    anchors = spread_anchors(batch, 1, 8)
    assert anchors.index.tolist() == [[5], [1]]


def test_evaluation_takes_all_there_is_where_there_are_fewer_than_slots():
    batch = packed_batch([[8, 6], [], [9]], 20)
    anchors = spread_anchors(batch, 4, 8)
    assert anchors.keep.tolist() == [[True, False, False, False], [False] * 4, [True, False, False, False]]
    assert anchors.index[:, 0].tolist() == [0, 0, 1]


def test_evaluation_anchors_are_where_training_ones_would_be():
    batch = supervised_batch([[0] * 10 + [1] * 6 + [0] * 20], context=36)
    anchors = spread_anchors(batch, 8, 4)
    assert anchors.index[anchors.keep].tolist() == [10, 11, 12, 13, 14]


def test_the_keep_mask_alone_empties_a_slot():
    batch = packed_batch([[20]], 20)
    anchors = draw(batch, 3)
    dropped = dataclasses.replace(anchors, keep=torch.tensor([[True, False, True]]))
    weights = make_blocks(batch, dropped, block_size=2, mask_token=256).weights
    assert weights.tolist() == [[0, 1, 0, 0, 0, 1]]
    rule = MaskRule(20, 2)
    context = dense_mask(dropped, rule)[0, 0, :, :20]
    assert context.any(dim=1).tolist() == [bool(anchors.index[0, 0] > 0)] * 2 + [False] * 2 + [True] * 2
    assert int(block_mask(dropped, rule).kv_num_blocks) == 1
