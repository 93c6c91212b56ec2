import dataclasses

import pytest
import torch

from tests.chats import write_chats
from trainer.config import ComputeConfig, Config, DataConfig
from trainer.data.dataset import open_data
from trainer.data.hidden import HiddenCache
from trainer.sources import CachedSource
from trainer.target.api import Observation

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_a_micro_batch_is_pinned_copied_without_waiting_and_the_same_on_the_gpu(tmp_path):
    path = write_chats(tmp_path / "chats.jsonl", 400)
    data = DataConfig(source="chat", path=str(path), batch_rows=2, context_tokens=1024)
    gpu = Config(data=data)
    cpu = dataclasses.replace(gpu, compute=ComputeConfig(device="cpu"))
    pinned, plain = (
        open_data(config, 260, tmp_path, lead=True, beat=lambda: None).train.micro_batch(3)
        for config in (gpu, cpu)
    )
    assert pinned.tokens.is_pinned()
    assert not plain.tokens.is_pinned()
    moved = pinned.to("cuda")
    torch.cuda.synchronize()
    for name in ("tokens", "positions", "starts", "ends", "loss_mask"):
        assert torch.equal(getattr(moved, name).cpu(), getattr(plain, name))


def test_what_was_read_ahead_comes_to_the_gpu_as_it_was_written(tmp_path):
    """Pinned memory is given back while copies from it are under way, under a GPU that is busy."""
    path = write_chats(tmp_path / "chats.jsonl", 400)
    data = DataConfig(source="chat", path=str(path), batch_rows=2, context_tokens=1024)
    train = open_data(Config(data=data), 260, tmp_path, lead=True, beat=lambda: None).train
    cpu = dataclasses.replace(Config(data=data), compute=ComputeConfig(device="cpu"))
    plain = open_data(cpu, 260, tmp_path, lead=True, beat=lambda: None).train
    count = 4
    cache = HiddenCache(tmp_path / "hidden", "k" * 16)
    wanted = [torch.randn(2, 1024, 4096).bfloat16() for _ in range(count)]
    for index, taps in enumerate(wanted):
        cache.write(index, Observation(taps, None))
    on_gpu = [(plain.micro_batch(index).tokens.cuda(), wanted[index].cuda()) for index in range(count)]
    source = CachedSource(train, cache, torch.device("cuda", 0), count=count)
    busy = torch.randn(4096, 4096, device="cuda")
    equal = []
    for index in range(3 * count):
        for _ in range(8):
            busy = torch.nn.functional.normalize(busy @ busy)
        batch, observation = source.fetch(index, [index + 1])
        tokens, taps = on_gpu[index % count]
        equal.append((batch.tokens == tokens).all() & (observation.taps == taps).all())
    source.close()
    assert all(bool(each) for each in equal)
    assert source.waited_s > 0
