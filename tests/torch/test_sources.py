import threading
from typing import TYPE_CHECKING, cast

import pytest
import torch

from tests.chats import write_chats
from tests.torch.test_data_dataset import VOCAB, config, digest, open_quietly
from trainer.data.hidden import HiddenCache
from trainer.errors import DataInvalid
from trainer.sources import CachedSource, LocalSource
from trainer.target.api import Observation

if TYPE_CHECKING:
    from trainer.target.api import Target

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
SHAPE = {"short_buckets": ()}


class Counting:
    """A target whose hidden states are the tokens themselves."""

    def observe(self, batch, taps, *, last):
        assert threading.current_thread() is threading.main_thread()
        hidden = batch.tokens[..., None].expand(-1, -1, len(taps)).float()
        return Observation(hidden, hidden.clone() if last else None)


def local(train, taps, *, last=False):
    return LocalSource(train, cast("Target", Counting()), taps, CPU, last=last)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    write_chats(folder / "chats.jsonl", 300)
    return folder


@pytest.fixture
def train(folder):
    return open_quietly(config(folder / "chats.jsonl", **SHAPE), folder / "out").train


def walk(source, indices):
    """Each with the next one told ahead, as training does."""
    try:
        for index, following in zip(indices, [*indices[1:], None], strict=True):
            yield source.fetch(index, [] if following is None else [following])
    finally:
        source.close()


def test_what_was_read_ahead_is_to_the_bit_what_is_read_when_needed(train, folder):
    plain = open_quietly(config(folder / "chats.jsonl", **SHAPE), folder / "out").train
    indices = [*range(2 * train.per_epoch() + 3), 1, 0, 5]
    fetched = walk(local(train, (0, 1), last=True), indices)
    for index, (batch, observation) in zip(indices, fetched, strict=True):
        assert digest(batch) == digest(plain.micro_batch(index))
        assert torch.equal(observation.taps[..., 1].long(), batch.tokens)
        assert batch.tokens.max() < VOCAB


def test_training_that_goes_back_gets_what_it_asks_for(train):
    source = local(train, (0,))
    batch, _ = source.fetch(4, [5])
    source.discard()
    again, _ = source.fetch(2, [3])
    assert digest(again) == digest(train.micro_batch(2))
    assert digest(source.fetch(4, [])[0]) == digest(batch)
    source.close()


def test_one_thread_asks_for_shapes_while_another_makes_micro_batches(folder):
    """As in a split, where the drafter makes room for what comes next."""
    settings = config(folder / "chats.jsonl")
    train, plain = (open_quietly(settings, folder / "buckets").train for _ in range(2))
    indices = list(range(4 * plain.per_epoch()))
    shapes = {index: plain.bucket(index) for index in indices}
    seen = {}
    asking = threading.Thread(target=lambda: seen.update({i: train.bucket(i) for i in reversed(indices)}))
    asking.start()
    for index, (batch, _) in zip(indices, walk(local(train, (0,)), indices), strict=True):
        bucket = shapes[index]
        assert batch.tokens.shape == (bucket.rows, bucket.context_tokens)
    asking.join()
    assert seen == shapes


def test_cached_hidden_states_come_with_their_own_documents_epoch_after_epoch(train, tmp_path):
    count = 3
    cache = HiddenCache(tmp_path, "k" * 16)
    for index in range(count):
        cache.write(index, Counting().observe(train.micro_batch(index), (0,), last=True))
    source = CachedSource(train, cache, CPU, count=count)
    indices = list(range(2 * count + 2))
    for index, (batch, observation) in zip(indices, walk(source, indices), strict=True):
        assert digest(batch) == digest(train.micro_batch(index % count))
        assert torch.equal(observation.taps[..., 0].long(), batch.tokens)
    assert source.waited_s > 0


def test_what_cannot_be_read_is_told_when_it_is_wanted_and_not_before(train, tmp_path):
    cache = HiddenCache(tmp_path, "k" * 16)
    cache.write(0, Counting().observe(train.micro_batch(0), (0,), last=False))
    source = CachedSource(train, cache, CPU, count=2)
    assert source.fetch(0, [1])[1].last is None
    with pytest.raises(DataInvalid, match=r"000000001\.safetensors: cannot be read"):
        source.fetch(1, [])
    source.close()
