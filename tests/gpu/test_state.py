"""Checkpoints and the optimizer on CUDA: equal bits after a resume, and nothing that waits for the device."""

import multiprocessing

import pytest
import torch

from tests.torch import tiny
from trainer.checkpoint import Checkpoints, complete_steps
from trainer.optim import scale_and_clip

pytestmark = [
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
processes = multiprocessing.get_context("spawn")  # a process that has used CUDA cannot be forked


def assert_equal(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


def trained(steps):
    model, optimizer = tiny.make(device="cuda")
    tiny.train(model, optimizer, 0, steps)
    return model, optimizer


def test_a_resumed_run_has_the_same_bits_as_one_that_was_not_stopped(tmp_path):
    straight = trained(10)
    model, optimizer = trained(5)
    Checkpoints(tmp_path, 2).save(5, model, optimizer, {}, wait=True)
    torch.manual_seed(99)
    model, optimizer = tiny.make(device="cuda")
    Checkpoints(tmp_path, 2).resume(model, optimizer)
    tiny.train(model, optimizer, 5, 10)
    assert_equal(tiny.bits(model, optimizer), tiny.bits(*straight))


def test_what_is_saved_on_a_gpu_is_resumed_on_the_cpu_and_back(tmp_path):
    model, optimizer = trained(3)
    Checkpoints(tmp_path, 2).save(3, model, optimizer, {}, wait=True)
    on_cpu = tiny.make()
    Checkpoints(tmp_path, 2).resume(*on_cpu)
    assert_equal(tiny.bits(*on_cpu), tiny.bits(model, optimizer))
    Checkpoints(tmp_path, 2).save(4, *on_cpu, {}, wait=True)
    back = tiny.make(device="cuda")
    Checkpoints(tmp_path, 2).resume(*back)
    assert_equal(tiny.bits(*back), tiny.bits(model, optimizer))


def test_the_random_state_of_the_device_is_resumed(tmp_path):
    model, optimizer = trained(1)
    Checkpoints(tmp_path, 2).save(1, model, optimizer, {}, wait=True)
    wanted = torch.randn(8, device="cuda")
    Checkpoints(tmp_path, 2).resume(model, optimizer)
    assert torch.equal(torch.randn(8, device="cuda"), wanted)


def test_training_on_while_a_save_is_in_flight_does_not_change_what_is_saved(tmp_path):
    model, optimizer = trained(1)
    big = torch.nn.Parameter(torch.ones(64 << 20, device="cuda"))  # 256 MB: its copy takes a while
    model.register_parameter("big", big)
    checkpoints = Checkpoints(tmp_path, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    for _ in range(3):
        big.grad = torch.ones_like(big)
        optimizer.step()
        then = big.detach().clone()
        checkpoints.save(1, model, optimizer, {}, wait=False)
        for _ in range(20):
            optimizer.step()
        checkpoints.finish()
        fresh, _ = tiny.make(device="cuda")
        fresh.register_parameter("big", torch.nn.Parameter(torch.zeros_like(big)))
        Checkpoints(tmp_path, 2).resume(fresh, None)
        assert torch.equal(dict(fresh.named_parameters())["big"], then)
    assert complete_steps(tmp_path) == [1]


@pytest.mark.parametrize("scale", [0.5, "tensor"])
def test_scaling_and_clipping_does_not_wait_for_the_device(scale):
    model, _ = tiny.make(device="cuda")
    factor = torch.tensor(0.5, device="cuda", dtype=torch.float64) if scale == "tensor" else scale
    model(torch.ones(4, 6, device="cuda")).sum().backward()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        norm = scale_and_clip(model.parameters(), factor, 1.0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert norm.is_cuda
    assert norm.isfinite()


def run_wrapped(tmp_path, how, size, before=None):
    arguments = [(rank, size, tmp_path, how, before, "cuda") for rank in range(size)]
    ranks = [processes.Process(target=tiny.save_as, args=given) for given in arguments]
    (tmp_path / "meet").unlink(missing_ok=True)
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
    assert [rank.exitcode for rank in ranks] == [0] * size


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(("first", "second"), [("ddp", "fsdp"), ("fsdp", "ddp")])
def test_replicas_shards_and_one_process_resume_from_one_another(tmp_path, first, second, size):
    if torch.cuda.device_count() < size:
        pytest.skip(f"needs {size} GPUs")
    run_wrapped(tmp_path, first, size)
    saved = torch.load(tmp_path / f"{first}.pt")
    alone = tiny.make()
    Checkpoints(tmp_path / first, 2).resume(*alone)
    assert_equal(tiny.bits(*alone), saved)
    run_wrapped(tmp_path, second, size, before=first)
    assert_equal(torch.load(tmp_path / f"{second}-resumed.pt"), saved)
