import math
import multiprocessing

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from tests.torch import tiny
from trainer.config import OptimConfig
from trainer.optim import learning_rate, make_optimizer, scale_and_clip, set_learning_rate, step_unless

pytestmark = pytest.mark.torch


def rates(schedule, **more):
    config = OptimConfig(lr=1.0, min_lr_ratio=0.1, schedule=schedule, warmup_ratio=0.1, **more)
    return [learning_rate(step, 100, config) for step in range(100)]


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_the_rate_rises_in_equal_steps_to_its_peak(schedule):
    assert rates(schedule)[:10] == pytest.approx([0.1 * step for step in range(1, 11)])


def test_the_rate_then_falls_to_its_floor_by_cosine():
    cosine = rates("cosine")
    assert max(cosine) == cosine[10] == 1.0
    assert cosine[10:] == sorted(cosine[10:], reverse=True)
    assert cosine[55] == pytest.approx(0.55)
    assert 0.1 < cosine[-1] < 0.11


def test_the_rate_is_stable_until_the_last_fifth_with_wsd():
    wsd = rates("wsd")
    assert wsd[9:81] == [1.0] * 72
    assert wsd[81:] == sorted(wsd[81:], reverse=True)
    assert wsd[-1] == pytest.approx(0.145)


@pytest.mark.parametrize(("ratio", "stable"), [(0.5, 51), (0.1, 91), (0.0, 100)])
def test_wsd_decays_over_the_share_that_is_asked_for(ratio, stable):
    wsd = rates("wsd", decay_ratio=ratio)
    assert wsd[10:stable] == [1.0] * (stable - 10)
    assert all(rate < 1.0 for rate in wsd[stable:])


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_the_shortest_runs_have_rates_too(schedule, steps):
    config = OptimConfig(lr=1.0, schedule=schedule)
    assert all(0 < learning_rate(step, steps, config) <= 1.0 for step in range(steps))


def test_matrices_decay_and_vectors_do_not():
    model = tiny.Tiny(tiny.TinyShape())
    optimizer = make_optimizer(model, OptimConfig(lr=0.1, weight_decay=0.5))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    set_learning_rate(optimizer, 0.1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        share = 0.95 if parameter.ndim == 2 else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * share)


def gradients(factor=1.0):
    generator = torch.Generator().manual_seed(3)
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in [(4, 5), (7,), (2, 2)]]
    for parameter in parameters:
        parameter.grad = factor * torch.randn(parameter.shape, generator=generator)
    return [*parameters, nn.Parameter(torch.zeros(3))]  # one without a gradient


@pytest.mark.parametrize("scale", [1.0, 0.01, 3.0, torch.tensor(0.25, dtype=torch.float64)])
@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e3])
def test_scaling_and_clipping_at_once_is_scaling_and_then_clipping(scale, factor):
    wanted, found = gradients(factor), gradients(factor)
    for parameter in wanted[:3]:
        parameter.grad *= scale
    norm = clip_grad_norm_(wanted, 1.0)
    torch.testing.assert_close(scale_and_clip(found, scale, 1.0), norm, check_dtype=False)
    for a, b in zip(found[:3], wanted[:3], strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    assert found[3].grad is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_shows_in_the_norm(value):
    parameters = gradients()
    parameters[1].grad[2] = value
    assert not math.isfinite(scale_and_clip(parameters, 1.0, 1.0))


def test_without_gradients_the_norm_is_zero():
    assert scale_and_clip([nn.Parameter(torch.zeros(3))], 1.0, 1.0) == 0


processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tests.torch.tiny", "torch._dynamo"])


def run_sharded(folder, rank_of):
    ranks = [processes.Process(target=rank_of, args=(rank, 2, folder)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    assert [rank.exitcode for rank in ranks] == [0, 0]


def test_the_norm_of_shards_is_that_of_the_whole_and_their_steps_are_the_same(tmp_path):
    run_sharded(tmp_path, tiny.step_sharded)
    norm, sharded = torch.load(tmp_path / "step.pt")
    model, optimizer = tiny.make()
    torch.testing.assert_close(norm, tiny.one_step(model, optimizer))
    for name, value in tiny.bits(model, optimizer).items():
        torch.testing.assert_close(sharded[name], value)


def test_a_fused_optimizer_of_shards_takes_a_step_and_leaves_out_a_bad_one(tmp_path):
    run_sharded(tmp_path, tiny.step_latched)
    taken, after = torch.load(tmp_path / "latched.pt")
    untrained = tiny.bits(*tiny.make())
    assert all(value == 1 for name, value in taken.items() if name.endswith(".step"))
    assert not any(torch.equal(taken[name], value) for name, value in untrained.items())
    for name, value in taken.items():
        assert torch.equal(after[name], value), name


@pytest.mark.parametrize("is_fused", [False, True])
def test_a_step_that_is_shut_out_leaves_weights_and_state_to_the_last_bit(is_fused):
    model, optimizer = tiny.make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=is_fused)
    kept = []
    for shut in (0.0, 1.0, 0.0):
        (model(torch.ones(4, 6)).square().sum() * (math.nan if shut else 1.0)).backward()
        step_unless(optimizer, torch.tensor(shut))
        optimizer.zero_grad(set_to_none=True)
        kept.append(tiny.bits(model, optimizer))
    first, shut_out, third = kept
    assert first.keys() == shut_out.keys()
    assert all(torch.equal(shut_out[name], value) for name, value in first.items())
    assert not torch.equal(third["norm.weight"], first["norm.weight"])
    assert third["norm.weight.step"] == 2
