"""Two threads, one of which traces: with the gate both go on, without it the other one fails."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch
from torch.fx import symbolic_trace

from tests.cli import LONG_S
from trainer.compiling import gate
from trainer.compiling.warmup import compiled

pytestmark = pytest.mark.torch

FX_ERROR = "using FX to symbolically trace a dynamo-optimized function"
FLAG_IS_THE_THREADS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 14)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Tracer:
    """A thread that stays inside torch.fx.symbolic_trace for a while, in the gate or beside it."""

    def __init__(self, *, gated: bool, seconds: float = 0.3) -> None:
        self.inside, self._release = threading.Event(), threading.Event()
        self._gated, self._seconds = gated, seconds
        self._thread = threading.Thread(target=self._run, name="tracer")

    def __enter__(self) -> None:
        self._thread.start()
        assert self.inside.wait(LONG_S)

    def __exit__(self, *_: object) -> None:
        self._release.set()
        self._thread.join()

    def _run(self) -> None:
        def slow(x: torch.Tensor) -> torch.Tensor:
            self.inside.set()
            self._release.wait(self._seconds)
            return x + 1

        with gate.held() if self._gated else contextlib.nullcontext():
            symbolic_trace(slow)


@pytest.mark.skipif(FLAG_IS_THE_THREADS, reason="from torch 2.14 on the FX flag is the thread's own")
def test_without_the_gate_a_warm_call_beside_a_trace_gets_the_fx_error():
    call = torch.compile(double, backend="eager", fullgraph=True)
    call(torch.ones(3))
    with Tracer(gated=False, seconds=LONG_S), pytest.raises(RuntimeError, match=FX_ERROR):
        call(torch.ones(3))


def test_with_the_gate_the_same_call_waits_for_the_trace_and_then_is_right():
    call = compiled(double, "eager")
    call(torch.ones(3))
    with Tracer(gated=True):
        assert call(torch.ones(3)).tolist() == [2.0] * 3
        assert not torch.fx._symbolic_trace.is_fx_symbolic_tracing()


@pytest.mark.skipif(FLAG_IS_THE_THREADS, reason="from torch 2.14 on the FX flag is the thread's own")
def test_that_call_fails_once_the_gate_is_taken_away(monkeypatch):
    call = compiled(double, "eager")
    call(torch.ones(3))
    monkeypatch.setattr(gate, "held", contextlib.nullcontext)
    with Tracer(gated=True, seconds=LONG_S), pytest.raises(RuntimeError, match=FX_ERROR):
        call(torch.ones(3))


def test_a_first_call_that_compiles_waits_for_the_trace_too():
    def triple(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    with Tracer(gated=True):
        assert compiled(triple, "aot_eager")(torch.ones(3)).tolist() == [3.0] * 3


def test_a_call_does_not_wait_where_nobody_traces():
    call = compiled(double, "eager")
    with gate.held():
        assert call(torch.ones(3)).tolist() == [2.0] * 3
    assert gate._LOCK.acquire(blocking=False)
    gate._LOCK.release()


def test_a_forward_recomputed_in_another_thread_of_the_backward_does_not_wait_for_its_own_step(monkeypatch):
    monkeypatch.setattr(gate, "WAIT_S", 0.2)
    call = gate.guarded(double)
    results: list[torch.Tensor] = []

    class Recomputed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
            results.append(call(gradient))
            return gradient

    keeper_has_it, release = threading.Event(), threading.Event()

    def keep() -> None:
        with gate.held():
            keeper_has_it.set()
            release.wait(LONG_S)

    # On the CPU a backward runs in its caller; a thread that keeps the gate makes it as another's here.
    keeper = threading.Thread(target=keep, name="keeper")
    keeper.start()
    assert keeper_has_it.wait(LONG_S)
    try:
        Recomputed.apply(torch.ones(2, requires_grad=True)).sum().backward()
        assert results[0].tolist() == [2.0, 2.0]
        with pytest.raises(RuntimeError, match=r"waited 0 s for thread keeper"):
            call(torch.ones(2))
    finally:
        release.set()
        keeper.join()


def test_a_call_that_fails_leaves_the_gate_open():
    def fail(_: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        gate.guarded(fail)(torch.ones(1))
    other = threading.Thread(target=lambda: gate.guarded(double)(torch.ones(1)))
    other.start()
    other.join(5)
    assert not other.is_alive()


def test_compiling_is_refused_outside_the_main_thread():
    caught: list[str] = []

    def elsewhere() -> None:
        try:
            gate.require_main_thread("warm-up")
        except RuntimeError as error:
            caught.append(str(error))

    thread = threading.Thread(target=elsewhere, name="helper")
    thread.start()
    thread.join()
    assert caught == ["warm-up: called in thread helper; only the main thread compiles"]
    gate.require_main_thread("warm-up")
