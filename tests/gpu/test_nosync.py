"""The loop on a GPU: from one pause to the next the host waits for nothing but a step that is long queued."""

import functools
from dataclasses import replace
from typing import cast

import pytest
import torch

from tests.torch.looplab import CONFIG, Lab, assert_same, compare_verdicts, given, with_guard
from trainer.compiling.warmup import compiled
from trainer.config import CheckpointConfig, DataConfig, DraftConfig, EvalConfig
from trainer.loop import Loop
from trainer.model import DraftLayer, DraftModel, use_layer_call

pytestmark = [
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
SHAPE = replace(
    CONFIG,
    data=DataConfig(batch_rows=1, context_tokens=256, anchors=16),
    draft=DraftConfig(num_layers=1, block_size=8, num_target_layers=1),
)
WARM = 3
"""Steps after which everything is compiled and every workspace is there."""


@functools.cache
def compiled_layer():
    return compiled(DraftLayer.plain, "inductor")


def lab(folder, config=SHAPE, poison=()):
    return Lab(
        folder,
        config,
        poison,
        device=torch.device("cuda"),
        dtype=torch.bfloat16,
        prepare=lambda drafting: use_layer_call(cast("DraftModel", drafting.draft), compiled_layer()),
    )


def waiting(method):
    """The same, where waiting is allowed."""

    @functools.wraps(method)
    def call(*args, **more):
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("default")
        try:
            return method(*args, **more)
        finally:
            torch.cuda.set_sync_debug_mode(before)

    return call


def test_nothing_waits_for_the_gpu_but_at_a_checkpoint(tmp_path, monkeypatch):
    config = replace(
        SHAPE,
        total_steps=20,
        log_every=3,
        checkpoint=CheckpointConfig(every_steps=8, wait=True),
        eval=EvalConfig(every_steps=0),
    )
    monkeypatch.setattr(Loop, "save", waiting(Loop.save))
    loop = lab(tmp_path, config).make(runs_ahead=True)
    for index in range(config.total_steps):
        given(loop).make(index)
    behind = []

    def note(index):
        behind.append(index - loop.step)
        if index == WARM:
            torch.cuda.set_sync_debug_mode("error")

    given(loop).on_fetch = note
    try:
        loop.run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert loop.step == config.total_steps
    assert [index for index, steps in enumerate(behind) if steps == 0] == [0, 8, 16]
    assert set(behind) == {0, 1}


@pytest.mark.parametrize("bad", [(), (5,), (6, 7)])
def test_a_host_that_is_ahead_trains_the_same_bits(tmp_path, bad):
    config = with_guard(SHAPE, max_skips=1)
    found = [lab(tmp_path / str(each), config, bad).run(runs_ahead=each) for each in (False, True)]
    assert_same(found[1], found[0])
    assert found[1]["step"] == config.total_steps
    assert [line["step"] for line in found[1]["skips"]] == [index + 1 for index in bad]
    assert found[1]["heartbeat"]["rollbacks"] == (len(bad) == 2)


@pytest.mark.parametrize(("window", "factor"), [(8, 1.3), (9, 1.3), (100, 20.0)])
def test_the_gpu_says_of_a_norm_what_the_host_says(window, factor):
    assert compare_verdicts(torch.device("cuda"), window, factor) > 20
