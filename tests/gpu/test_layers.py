"""An uncompiled norm on the GPU, one kernel there, beside the operations it stands for."""

import pytest

torch = pytest.importorskip("torch")

from trainer.layers import RMSNorm  # noqa: E402 - only where there is torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def outcome(norm, x, gradient, *, plain):
    x = x.clone().requires_grad_()
    norm.zero_grad()
    out = norm._scaled(x) * norm.weight.to(x.dtype) if plain else norm(x)
    out.backward(gradient)
    return out.detach(), x.grad, norm.weight.grad.clone()


@pytest.mark.parametrize("width", [64, 128, 4096, 4104])
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-13), (torch.float32, 1e-6), (torch.bfloat16, 8e-3)]
)
def test_the_uncompiled_norm_is_the_plain_one_within_rounding(dtype, bound, width):
    torch.manual_seed(width)
    norm = RMSNorm(width, 1e-6).to("cuda")
    torch.nn.init.normal_(norm.weight)
    x, gradient = (torch.randn(2, 300, width, device="cuda", dtype=dtype) for _ in range(2))
    one, plain = (outcome(norm, x, gradient, plain=way) for way in (False, True))
    for mine, theirs in zip(one, plain, strict=True):
        assert mine.dtype == theirs.dtype
        wide = theirs.double()
        assert (mine.double() - wide).norm() <= bound * wide.norm()


def test_it_keeps_no_float32_copy():
    norm = RMSNorm(4096, 1e-6).to("cuda")
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out = norm(x)
    assert torch.cuda.max_memory_allocated() - before < 2.1 * x.nbytes
    assert out.shape == x.shape


def test_it_gives_the_same_twice():
    norm = RMSNorm(4096, 1e-6).to("cuda")
    x, gradient = (torch.randn(3000, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    first, second = (outcome(norm, x, gradient, plain=False) for _ in range(2))
    assert all(map(torch.equal, first, second))
