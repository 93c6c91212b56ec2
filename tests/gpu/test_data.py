import dataclasses

import pytest
import torch

from tests.chats import write_chats
from trainer.config import ComputeConfig, Config, DataConfig
from trainer.data.dataset import open_data

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
