import numpy as np
import pytest

from trainer.config import DataConfig
from trainer.data.buckets import Bucket, bucket_of, buckets
from trainer.data.packing import pack_rows, permutation, plan_epoch
from trainer.errors import ConfigInvalid

ONE = (Bucket(1024, 4, 64),)
THREE = (Bucket(128, 32, 8), Bucket(512, 8, 32), Bucket(1024, 4, 64))


def random_lengths(count, longest=1024, seed=0):
    rng = np.random.default_rng(seed)
    return np.clip(rng.lognormal(5.0, 1.0, count), 2, longest).astype(np.int32)


def contents(epoch):
    return [
        (bucket, [row.tolist() for row in rows])
        for bucket, rows in map(epoch.rows, range(len(epoch.micro_batches)))
    ]


def test_tokens_and_slots_of_a_micro_batch_are_the_same_in_every_bucket():
    data = DataConfig(batch_rows=4, context_tokens=1024, anchors=64, short_buckets=(512, 128))
    assert buckets(data) == THREE
    assert {bucket.rows * bucket.context_tokens for bucket in THREE} == {4096}
    assert {bucket.rows * bucket.anchors for bucket in THREE} == {256}
    assert bucket_of(data, 512) == THREE[1]


def test_a_bucket_has_at_least_one_slot():
    assert buckets(DataConfig(context_tokens=1024, anchors=2, short_buckets=(128,)))[0].anchors == 1


@pytest.mark.parametrize("length", [100, 2048])
def test_a_short_bucket_divides_the_row(length):
    with pytest.raises(ConfigInvalid, match=rf"short_buckets: {length} does not divide .* 1024; give"):
        buckets(DataConfig(context_tokens=1024, short_buckets=(length,)))


@pytest.mark.parametrize("shapes", [ONE, THREE])
@pytest.mark.parametrize("count", [40, 1000, 20_000])
def test_every_document_is_in_one_row_that_it_fits_or_told_as_dropped(shapes, count):
    lengths = random_lengths(count)
    epoch = plan_epoch(lengths, shapes, 7, 3)
    seen = []
    for bucket, rows in contents(epoch):
        assert len(rows) == shapes[bucket].rows
        for row in rows:
            assert 0 < lengths[row].sum() <= shapes[bucket].context_tokens
            seen += row
    assert len(seen) == len(set(seen))
    assert len(seen) + epoch.num_dropped == count
    assert epoch.num_used == lengths[seen].sum()
    assert epoch.num_slots == 4096 * len(epoch.micro_batches)
    # No more than the rows of one micro-batch of the longest bucket.
    assert lengths.sum() - epoch.num_used < 4096


def test_most_documents_that_fit_a_short_row_are_in_one():
    lengths = random_lengths(20_000)
    where = np.full(20_000, -1)
    for bucket, rows in contents(plan_epoch(lengths, THREE, 7, 0)):
        where[np.concatenate(rows).astype(np.int64)] = bucket
    assert (where[lengths > 512] != 1).all()
    assert (where[lengths > 128] != 0).all()
    assert (where[(lengths > 128) & (lengths <= 512)] == 1).mean() > 0.5


def test_almost_no_room_is_left():
    assert plan_epoch(random_lengths(20_000), ONE, 7, 0).efficiency > 0.99
    assert plan_epoch(random_lengths(20_000), THREE, 7, 0).efficiency > 0.98


def test_packing_is_as_good_as_the_best_for_pairs():
    lengths = np.array([600, 424, 700, 324, 1000, 24] * 50, np.int32)
    order, bounds = pack_rows(lengths, 1024)
    assert len(bounds) - 1 == 150
    assert sorted(order.tolist()) == list(range(300))


def test_an_epoch_depends_on_seed_and_number_alone():
    lengths = random_lengths(3000)
    first = contents(plan_epoch(lengths, THREE, 7, 1))
    assert contents(plan_epoch(lengths, THREE, 7, 1)) == first
    assert contents(plan_epoch(lengths, THREE, 7, 2)) != first
    assert contents(plan_epoch(lengths, THREE, 8, 1)) != first


def test_the_order_is_the_same_on_every_machine():
    assert permutation(10, 1, "documents", 0).tolist() == PINNED


PINNED = [7, 1, 5, 4, 3, 9, 6, 8, 2, 0]


def test_a_permutation_is_one_and_looks_shuffled():
    order = permutation(10_000, 3, "x")
    assert np.array_equal(np.sort(order), np.arange(10_000))
    assert abs(np.corrcoef(order, np.arange(10_000))[0, 1]) < 0.05
    assert (order == np.arange(10_000)).sum() < 10


def test_buckets_are_mixed_over_the_epoch():
    kinds = [bucket for bucket, _ in contents(plan_epoch(random_lengths(20_000), THREE, 7, 0))]
    half = len(kinds) // 2
    assert set(kinds[:half]) == set(kinds[half:]) == {0, 1, 2}


def test_a_document_longer_than_the_longest_row_is_a_defect_of_the_caller():
    with pytest.raises(ValueError, match="1025 tokens; the longest row has 1024"):
        plan_epoch(np.array([1025], np.int32), ONE, 7, 0)


def test_too_few_documents_make_no_micro_batch():
    epoch = plan_epoch(np.array([1000, 1000, 1000], np.int32), ONE, 7, 0)
    assert (len(epoch.micro_batches), epoch.num_dropped, epoch.efficiency) == (0, 3, 0.0)
    assert plan_epoch(np.empty(0, np.int32), THREE, 7, 0).num_dropped == 0
