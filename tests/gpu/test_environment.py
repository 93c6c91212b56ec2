"""What only a GPU can tell of the environment: driver, NCCL, cuDNN and the cards themselves."""

import json

import pytest
import torch

from trainer.environment import gpus, torch_build
from trainer.provenance import driver_version, versions

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_the_cards_the_driver_and_cudas_libraries_are_told():
    cards, build = gpus(), torch_build()
    assert len(cards) == torch.cuda.device_count()
    assert cards[0]["name"] == torch.cuda.get_device_name(0)
    assert cards[0]["memory_bytes"] > 1 << 30
    assert cards[0]["capability"] == "{}.{}".format(*torch.cuda.get_device_capability(0))
    assert build["cudnn"] > 8000
    assert str(build["nccl"]).count(".") >= 1
    assert (driver_version() or "").split(".")[0].isdecimal()
    assert json.dumps({"gpus": cards, "build": build, "packages": versions()}, allow_nan=False)
