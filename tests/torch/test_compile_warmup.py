"""Warm-up: every shape once, and nothing after; the twin's graphs serve the real layers."""

from __future__ import annotations

import dataclasses
import errno
import shutil
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch._dynamo import config as dynamo_config

from trainer.compiling import artifacts, pairs, warmup
from trainer.compiling.caches import cache_dirs
from trainer.layers import Linear, RMSNorm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trainer.compiling.artifacts import Origin
    from trainer.compiling.caches import CacheDirs

# Dynamo asks every input for its gradient, and hides that warning unless warnings are errors.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:The .grad attribute")]
needs_cpp = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor on the CPU needs g++")


@pytest.fixture(autouse=True)
def _dynamo_as_new() -> Iterator[None]:
    limits = dynamo_config.recompile_limit, dynamo_config.fail_on_recompile_limit_hit
    torch._dynamo.reset()
    yield
    torch.compiler.set_stance("default")
    torch._dynamo.reset()
    dynamo_config.recompile_limit, dynamo_config.fail_on_recompile_limit_hit = limits


@pytest.fixture
def dirs(tmp_path: Path) -> CacheDirs:
    found = cache_dirs(tmp_path, host="here")
    found.node.mkdir(parents=True)
    return found


class Layer(nn.Module):
    """As the drafter's: `plain` is what is compiled, and forward calls it or its compiled form."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = Linear(8, 8)
        self.norm = RMSNorm(8, 1e-6)
        self.compute: Callable[..., torch.Tensor] = Layer.plain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(self, x)

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.norm(self.proj(x))
        return x + mixed


class Stack(nn.Module):
    def __init__(self, call: Callable[..., torch.Tensor], depth: int = 5) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(depth))
        for layer in self.layers:
            assert isinstance(layer, Layer)
            layer.compute = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def step(call: Callable[[torch.Tensor], torch.Tensor], rows: int) -> None:
    """A first layer's input needs no gradient, a later one's does: two graphs."""
    call(call(torch.ones(rows, 8))).sum().backward()


def look(call: Callable[[torch.Tensor], torch.Tensor], rows: int) -> None:
    with torch.no_grad():
        call(torch.ones(rows, 8))


def calls(call: Callable[[torch.Tensor], torch.Tensor], *rows: int):
    trains = [(f"step {count}", lambda count=count: step(call, count)) for count in rows]
    return [*trains, *((f"look {count}", lambda count=count: look(call, count)) for count in rows)]


def warm(dirs: CacheDirs, call: Callable[[torch.Tensor], torch.Tensor], *rows: int) -> warmup.WarmUp:
    return warmup.warm_up(calls(call, *rows), dirs=dirs, origin=None, local_rank=0, beat=lambda: None)


def on(layer: nn.Module, call: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: call(layer, x)


def test_a_twin_s_graphs_serve_five_layers_and_nothing_compiles_after(dirs):
    call = warmup.compiled(Layer.plain, "aot_eager")
    done = warm(dirs, on(Layer(), call), 2, 4)
    assert done.graphs == 6  # two row counts x (first layer, later layer, no gradients)
    real, plain = Stack(call), Stack(Layer.plain)
    plain.load_state_dict(real.state_dict())
    for rows in (2, 4):
        x = torch.randn(rows, 8)
        assert torch.equal(real(x), plain(x))
        real(x).sum().backward()
        plain(x).sum().backward()
        for mine, theirs in zip(real.parameters(), plain.parameters(), strict=True):
            assert mine.grad is not None
            assert theirs.grad is not None
            assert torch.equal(mine.grad, theirs.grad)
        real.eval()
        with torch.no_grad():
            real(x)
        real.train()
    assert done.recompiles() == 0


def test_what_a_killed_compile_left_is_dropped_and_a_finished_one_s_is_kept(dirs, capsys):
    torn = dirs.inductor / "g3" / "main.so"
    torn.parent.mkdir(parents=True)
    torn.write_bytes(b"half")
    call = on(Layer(), warmup.compiled(Layer.plain, "aot_eager"))
    warm(dirs, call, 2)
    assert torn.exists()
    (dirs.node / "turn.lock").write_text("rank 2, pid 7")  # which a holder that ends removes
    torch.compiler.set_stance("default")
    warm(dirs, call, 2)
    assert list(dirs.inductor.iterdir()) == []
    assert "rank 2, pid 7 ended while it compiled" in "".join(capsys.readouterr())


def told(dirs: CacheDirs, origin: Origin, capsys: pytest.CaptureFixture[str]) -> str:
    torch.compiler.set_stance("default")
    call = on(Layer(), warmup.compiled(Layer.plain, "aot_eager"))
    warmup.warm_up(calls(call, 2), dirs=dirs, origin=origin, local_rank=0, beat=lambda: None)
    return capsys.readouterr().out


def test_a_cache_that_holds_all_is_not_filled_again_and_one_that_may_not_is(dirs, capsys, monkeypatch):
    for name, path in (("TORCHINDUCTOR_CACHE_DIR", dirs.inductor), ("TRITON_CACHE_DIR", dirs.triton)):
        monkeypatch.setenv(name, str(path))
    origin = artifacts.describe(torch.device("cpu"), "aot_eager", {"rows": (2,)})
    whole = pairs.write(dirs.artifacts, dataclasses.asdict(origin), b"no cache", {}, compile_s=1.0)
    assert origin.fingerprint in whole
    assert "torch cannot read it; compiling anew" in told(dirs, origin, capsys)
    assert f"compile cache: filled by this node before, {dirs.node}" in told(dirs, origin, capsys)
    # Another one, a cache that was cleaned up, and a pair that is to be saved anew.
    other = dataclasses.replace(origin, device="another")
    assert "nothing saved" in told(dirs, other, capsys)
    shutil.rmtree(dirs.triton)
    assert "compiling anew" in told(dirs, origin, capsys)
    assert "filled by this node before" in told(dirs, origin, capsys)
    pairs.paths(dirs.artifacts, origin.fingerprint)[0].write_bytes(b"torn")
    assert "damaged" in told(dirs, origin, capsys)


def test_a_shape_that_was_not_warmed_up_is_refused(dirs):
    call = warmup.compiled(Layer.plain, "aot_eager")
    done = warm(dirs, on(Layer(), call), 2)
    with pytest.raises(RuntimeError, match="fail_on_recompile"):
        call(Layer(), torch.ones(3, 8))
    assert done.recompiles() == 0


def test_compiling_on_purpose_is_allowed_and_counted(dirs):
    call = warmup.compiled(Layer.plain, "aot_eager")
    done = warm(dirs, on(Layer(), call), 2)
    with warmup.allowing_compile():
        call(Layer(), torch.ones(3, 8))
    call(Layer(), torch.ones(3, 8))
    assert done.recompiles() == 1
    with pytest.raises(RuntimeError, match="fail_on_recompile"):
        call(Layer(), torch.ones(4, 8))


def test_what_cannot_be_saved_is_told_and_the_start_goes_on(dirs, capsys, monkeypatch):
    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(artifacts, "save", full)
    origin = artifacts.describe(torch.device("cpu"), "aot_eager", {})
    call = on(Layer(), warmup.compiled(Layer.plain, "aot_eager"))
    done = warmup.warm_up(calls(call, 2), dirs=dirs, origin=origin, local_rank=0, beat=lambda: None)
    assert done.graphs == 3
    assert "not saved" in (told := capsys.readouterr().err)
    assert "No space left on device" in told


def test_the_recompile_limit_is_an_error_and_not_uncompiled_code(monkeypatch):
    call = warmup.compiled(Layer.plain, "aot_eager")
    monkeypatch.setattr(dynamo_config, "recompile_limit", 2)
    for rows in (2, 3):
        call(Layer(), torch.ones(rows, 8))
    with pytest.raises(Exception, match="recompile_limit"):
        call(Layer(), torch.ones(4, 8))


def test_many_buckets_stay_under_the_recompile_limit(dirs):
    call = warmup.compiled(Layer.plain, "aot_eager")
    assert warm(dirs, on(Layer(), call), *range(2, 5)).graphs == 9  # dynamo's own limit is 8


def test_a_call_that_compiles_each_time_is_told_by_name(dirs):
    count = iter(range(2, 10))
    call = warmup.compiled(Layer.plain, "aot_eager")
    changing = [("eval", lambda: look(on(Layer(), call), next(count)))]
    with pytest.raises(RuntimeError, match="fail_on_recompile"):
        warmup.warm_up(changing, dirs=dirs, origin=None, local_rank=0, beat=lambda: None)


@needs_cpp
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_backward_that_only_the_second_pass_runs_is_told_by_name(dirs, monkeypatch):
    monkeypatch.setattr(torch._inductor.config.cpp, "vec_isa_ok", True)
    monkeypatch.setattr(torch._inductor.config, "cpp_cache_precompile_headers", False)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(dirs.node / "inductor"))
    layer = Layer()
    seen: list[int] = []
    call = warmup.compiled(Layer.plain, "inductor")

    def late() -> None:
        out = call(layer, torch.ones(2, 8)).sum()
        if seen:
            out.backward()
        seen.append(1)

    with pytest.raises(RuntimeError, match="warm-up of step: it compiled again"):
        warmup.warm_up([("step", late)], dirs=dirs, origin=None, local_rank=0, beat=lambda: None)


def test_warm_up_keeps_the_random_state(dirs):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)

    def draw() -> None:
        torch.rand(7)

    warmup.warm_up(
        [("draws", draw)],
        dirs=dirs,
        origin=None,
        local_rank=0,
        beat=lambda: None,
    )
    assert torch.equal(torch.rand(3), expected)


def test_heartbeats_go_on_between_the_calls(dirs):
    beats: list[int] = []
    call = warmup.compiled(Layer.plain, "aot_eager")
    warmup.warm_up(
        calls(on(Layer(), call), 2),
        dirs=dirs,
        origin=None,
        local_rank=0,
        beat=lambda: beats.append(1),
    )
    assert len(beats) >= 4
