from typing import Any

import pytest
import torch

from trainer import softmax
from trainer.config import LossConfig
from trainer.loss import LossTerms, chunked_loss

pytestmark = [
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROWS, SLOTS, BLOCK, WIDTH, VOCAB = 1, 256, 16, 1024, 32_000
CHUNK = 512
OBJECTIVES = ["decay", "dpace"]
LABELS = ["data", "target"]


def inputs(labels: str) -> dict[str, Any]:
    """Bfloat16 on the GPU; every fifth position is masked."""
    random = torch.Generator("cuda").manual_seed(7)
    shape = (ROWS, SLOTS * BLOCK)

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=random, device="cuda").bfloat16()

    ids = torch.randint(0, VOCAB, shape, generator=random, device="cuda")
    weights = (torch.arange(shape[1], device="cuda") % 5 != 2).float().expand(shape)
    return {
        "hidden_RQD": draw(*shape, WIDTH).requires_grad_(),
        "head_VD": draw(VOCAB, WIDTH) * WIDTH**-0.5,
        "labels_RQ": ids if labels == "data" else None,
        "teacher_RQD": draw(*shape, WIDTH) if labels == "target" else None,
        "weights_RQ": weights.contiguous(),
    }


def run(given: dict[str, Any], config: LossConfig) -> tuple[LossTerms, torch.Tensor]:
    terms = chunked_loss(**given, config=config, block_size=BLOCK)
    (gradient,) = torch.autograd.grad(terms.total, given["hidden_RQD"])
    return terms, gradient


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_bfloat16_on_the_gpu_agrees_with_float64(labels, objective):
    config = LossConfig(objective=objective, labels=labels, chunk_tokens=CHUNK)
    given = inputs(labels)
    terms, gradient = run(given, config)
    wide = {
        name: value.detach().double() if value is not None and value.is_floating_point() else value
        for name, value in given.items()
    }
    wide["hidden_RQD"].requires_grad_()
    expected, expected_gradient = run(wide, config)
    assert expected.total.dtype == torch.float64
    for name in ("total", "weight", "counted"):
        value = getattr(terms, name).detach().double()
        torch.testing.assert_close(value, getattr(expected, name).detach(), rtol=1e-5, atol=0.0, msg=name)
    assert abs(terms.correct - expected.correct) <= 2
    off = (gradient.double() - expected_gradient).norm() / expected_gradient.norm()
    assert off < 5e-3


@pytest.mark.parametrize("labels", LABELS)
def test_nothing_waits_for_the_gpu_and_memory_is_that_of_chunks(labels):
    config = LossConfig(labels=labels, chunk_tokens=CHUNK)
    given = inputs(labels)
    run(given, config)  # the libraries' own workspaces
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.set_sync_debug_mode("error")
    try:
        kept = run(given, config)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    peak = torch.cuda.max_memory_allocated() - before
    logits = CHUNK * VOCAB * 4
    gradients = 2 * ROWS * SLOTS * BLOCK * WIDTH * 2
    assert peak < (2.5 if labels == "data" else 3.5) * logits + gradients + 2**24
    assert kept[0].total.isfinite()


@pytest.mark.parametrize("width", [1, 7, 8192, 8193, 32_000, 151_936])
def test_the_two_passes_over_the_logits_are_softmax_and_its_gradient(width):
    random = torch.Generator("cuda").manual_seed(width)
    logits = 4 * torch.randn(70, width, generator=random, device="cuda")
    label = torch.randint(0, width, (70,), generator=random, device="cuda")
    weight = torch.rand(70, 1, generator=random, device="cuda")
    weight[::3] = 0
    logits[3] = torch.nan  # of no weight
    exact = logits.double()
    logsumexp, chosen, best = softmax.row_terms(logits, label)
    kept = torch.arange(70, device="cuda") != 3
    torch.testing.assert_close(logsumexp[kept].double(), exact.logsumexp(dim=-1)[kept], rtol=1e-6, atol=1e-6)
    assert torch.equal(chosen[kept], logits[kept].gather(1, label[kept, None])[:, 0])
    assert torch.equal(best[kept], logits[kept].argmax(dim=-1))
    assert logsumexp[3].isnan()
    expected = exact.softmax(dim=-1)
    expected[torch.arange(70), label] -= 1
    expected = torch.where(weight != 0, expected * weight, 0)
    gradient = softmax.logit_gradient_(logits, label, logsumexp, weight, torch.bfloat16)
    assert not gradient[::3].any()
    assert (gradient.double() - expected).norm() <= 3e-3 * expected.norm()
