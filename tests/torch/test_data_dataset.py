import dataclasses
import hashlib
import multiprocessing

import pytest
import torch

from tests.chats import write_chats
from trainer.config import Config, DataConfig
from trainer.corpus import read_corpus, stdlib_directory
from trainer.data.buckets import buckets
from trainer.data.dataset import open_data
from trainer.data.windows import Windows
from trainer.errors import ConfigInvalid, DataInvalid
from trainer.seeds import generator

pytestmark = pytest.mark.torch
VOCAB = 260


def config(path, **changes):
    values = {"batch_rows": 2, "context_tokens": 1024, "short_buckets": (256,), "anchors": 16, **changes}
    return Config(seed=3, data=DataConfig(source="chat", path=str(path), **values))


def open_quietly(configured, directory, **options):
    words = {"lead": True, "beat": lambda: None, "tell": lambda _: None, **options}
    return open_data(configured, VOCAB, directory, **words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_chats(folder / "chats.jsonl", 600)
    return folder


@pytest.fixture(scope="module")
def data(folder):
    return open_quietly(config(folder / "chats.jsonl"), folder / "out")


def digest(batch):
    told = hashlib.sha256(str(batch.lengths).encode())
    for tensor in (batch.tokens, batch.positions, batch.starts, batch.ends, batch.loss_mask):
        told.update(tensor.numpy().tobytes())
    return told.hexdigest()


def documents(batch):
    """The bytes of each document."""
    for row, lengths in enumerate(batch.lengths):
        begin = 0
        for length in lengths:
            yield bytes(batch.tokens[row, begin : begin + length].tolist())
            begin += length


def digests_elsewhere(configured, directory, indices, results):
    train = open_quietly(configured, directory, lead=False).train
    results.put([digest(train.micro_batch(index)) for index in indices])


def test_a_micro_batch_has_the_shape_of_its_bucket(data, folder):
    shapes = buckets(config(folder).data)
    seen = set()
    for index in range(data.train.per_epoch()):
        batch, bucket = data.train.micro_batch(index), data.train.bucket(index)
        assert batch.tokens.shape == (bucket.rows, bucket.context_tokens)
        assert not any(tensor.is_pinned() for tensor in (batch.tokens, batch.loss_mask))
        seen.add(bucket)
    assert seen == set(shapes)


def test_any_order_of_asking_gives_the_same_micro_batches_over_epochs(data, folder):
    count = data.train.per_epoch(0) + data.train.per_epoch(1) + 3
    inorder = [digest(data.train.micro_batch(index)) for index in range(count)]
    assert len(set(inorder)) == count
    again = open_quietly(config(folder / "chats.jsonl"), folder / "out").train
    for index in torch.randperm(count, generator=generator(1, "test", 0)).tolist()[:40]:
        assert digest(again.micro_batch(index)) == inorder[index]
    resumed = open_quietly(config(folder / "chats.jsonl"), folder / "out").train
    middle = data.train.per_epoch(0) + 2
    assert [digest(resumed.micro_batch(index)) for index in range(middle, count)] == inorder[middle:]


def test_another_process_has_the_same(data, folder):
    indices = [0, 5, data.train.per_epoch(0) + 1]
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    arguments = (config(folder / "chats.jsonl"), folder / "out", indices, results)
    process = context.Process(target=digests_elsewhere, args=arguments)
    process.start()
    assert results.get(timeout=60) == [digest(data.train.micro_batch(index)) for index in indices]
    process.join()


def test_every_document_comes_once_an_epoch_but_for_those_told(folder):
    told: list[str] = []
    data = open_quietly(config(folder / "chats.jsonl"), folder / "out", tell=told.append)
    begin, everything = 0, set()
    for epoch in range(3):
        end = begin + data.train.per_epoch(epoch)
        seen = [text for index in range(begin, end) for text in documents(data.train.micro_batch(index))]
        assert len(seen) == len(set(seen))
        (line,) = [line for line in told if line.startswith(f"epoch {epoch}: ")][:1]
        dropped, of = (int(word) for word in line.split("; ")[1].split(" documents")[0].split(" of "))
        assert len(seen) + dropped == of
        everything |= set(seen)
        begin = end
    assert len(everything) == of


def test_no_held_out_document_is_trained_on(data):
    trained = {
        text for index in range(data.train.per_epoch()) for text in documents(data.train.micro_batch(index))
    }
    held = [text for batch in data.held_out.batches(1000) for text in documents(batch)]
    assert f" {len(held)} held out; " in data.lines[0]
    assert len(held) == len(set(held)) == len(data.held_out.prompts(1000, 10)) > 3
    assert not trained & set(held)


def test_what_is_not_the_assistants_is_not_supervised(data):
    batch = data.train.micro_batch(0)
    assert 0 < int(batch.loss_mask.sum()) < batch.num_tokens
    for row in range(len(batch.tokens)):
        text = bytes(batch.tokens[row][batch.loss_mask[row]].tolist())
        assert b"<|im_start|>" not in text
        assert text.count(b"<|im_end|>") > 0


def test_held_out_batches_are_full_shaped_the_same_each_time_and_at_most_all(data, folder):
    few, many = data.held_out.batches(1), data.held_out.batches(1000)
    assert len(few) == 1
    assert len(few[0].tokens) == 2
    assert all(batch.tokens.shape == (2, 1024) for batch in many)
    again = open_quietly(config(folder / "chats.jsonl"), folder / "out").held_out
    assert [digest(batch) for batch in again.batches(1000)] == [digest(batch) for batch in many]


def test_a_prompt_ends_where_the_assistant_would_answer(data):
    prompts = data.held_out.prompts(4, 4096)
    assert len(prompts) == 4
    assert all(bytes(prompt).endswith(b"<|im_start|>assistant\n") for prompt in prompts)
    assert {len(prompt) for prompt in data.held_out.prompts(4, 10)} == {10}
    assert data.held_out.prompts(0, 10) == []
    assert 4 < len(data.held_out.prompts(10_000, 10)) < 30


def test_the_fingerprint_of_the_order_follows_seed_and_shape(data, folder):
    path = folder / "chats.jsonl"
    other = open_quietly(config(path, batch_rows=3), folder / "out")
    assert other.fingerprint == data.fingerprint
    assert other.train.fingerprint != data.train.fingerprint
    seeded = open_quietly(dataclasses.replace(config(path), seed=4), folder / "out")
    assert seeded.train.fingerprint != data.train.fingerprint
    assert digest(seeded.train.micro_batch(0)) != digest(data.train.micro_batch(0))
    assert open_quietly(config(path), folder / "out").train.fingerprint == data.train.fingerprint


def test_the_lines_tell_what_became_of_the_documents(folder, tmp_path):
    path = tmp_path / "some.jsonl"
    path.write_bytes((folder / "chats.jsonl").read_bytes() + b"{\n")
    lines = open_quietly(config(path, max_document_tokens=300), tmp_path).lines
    assert "documents with" in lines[0]
    assert "one in 64 by content" in lines[0]
    assert any(line.startswith("1 of 601 bad lines were left out") for line in lines)
    assert any("were too long and lost" in line for line in lines)


def test_too_few_documents_for_a_micro_batch_are_refused_with_numbers(folder):
    with pytest.raises(
        DataInvalid, match=r"do not fill one micro-batch of 400 x 1024; lower data\.batch_rows"
    ):
        open_quietly(config(folder / "chats.jsonl", batch_rows=400, short_buckets=()), folder / "out")


def stdlib(rows=4, window=160):
    return Config(seed=5, data=DataConfig(batch_rows=rows, context_tokens=window, anchors=4))


def test_of_the_standard_library_each_window_is_a_document_in_the_order_of_its_seed(tmp_path):
    data = open_quietly(stdlib(), tmp_path)
    corpus = read_corpus(stdlib_directory("auto"))
    starts: list[int] = []
    stream = b"".join(source.text for source in corpus.train)
    offset = 0
    for source in corpus.train:
        starts += range(offset, offset + len(source.text) - 159, 160)
        offset += len(source.text)
    for index in (0, 7, len(starts) // 4, len(starts) // 2):
        rows = []
        for place in range(4 * index, 4 * index + 4):
            epoch, position = divmod(place, len(starts))
            order = torch.randperm(len(starts), generator=generator(5, "windows", epoch))
            begin = starts[int(order[position])]
            rows.append(list(stream[begin : begin + 160]))
        batch = data.train.micro_batch(index)
        assert batch.tokens.tolist() == rows
        assert batch.lengths == ((160,),) * 4
        assert bool(batch.loss_mask.all())
    assert data.train.per_epoch() == len(starts) // 4
    assert data.fingerprint == corpus.fingerprint
    assert list(tmp_path.iterdir()) == []


def test_held_out_windows_are_spread_over_the_held_out_files(tmp_path):
    data = open_quietly(stdlib(), tmp_path)
    windows = Windows(read_corpus(stdlib_directory("auto")).held_out, 160, 5)
    batches = data.held_out.batches(6)
    assert torch.equal(torch.cat([batch.tokens for batch in batches]), windows.spread(8))
    assert data.held_out.prompts(3, 20) == windows.spread(3)[:, :20].tolist()


def test_more_held_out_windows_than_there_are_give_each_once(tmp_path):
    data = open_quietly(stdlib(), tmp_path)
    prompts = data.held_out.prompts(1 << 16, 160)
    assert (
        prompts
        == Windows(read_corpus(stdlib_directory("auto")).held_out, 160, 5).spread(len(prompts)).tolist()
    )
    assert len({tuple(prompt) for prompt in prompts}) > len(prompts) * 0.9
    assert len(data.held_out.batches(1 << 16)) == len(prompts) // 4


def test_a_vocabulary_without_all_bytes_and_a_short_bucket_that_does_not_divide_are_refused(folder, tmp_path):
    with pytest.raises(ConfigInvalid, match="the target's vocabulary has 100 tokens"):
        open_data(stdlib(), 100, tmp_path, lead=True, beat=lambda: None)
    with pytest.raises(ConfigInvalid, match="300 does not divide"):
        open_quietly(config(folder / "chats.jsonl", short_buckets=(300,)), tmp_path)


def test_a_library_without_enough_windows_is_refused(tmp_path):
    with pytest.raises(DataInvalid, match=r"held-out windows of 160 tokens; a batch needs 4096; lower"):
        open_quietly(stdlib(rows=4096), tmp_path)
