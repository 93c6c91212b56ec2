"""The failures of `trainer.inject`, made for real where the machine can."""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch.fx import _symbolic_trace, symbolic_trace
from torch.nn.attention.flex_attention import flex_attention

from trainer.console import say
from trainer.errors import ConfigInvalid
from trainer.files import write_durably
from trainer.inject import Failure, Injection
from trainer.model import DraftModel, use_layer_call

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer.attention import AttentionMask
    from trainer.model import DraftLayer

# The shape at which dense attention asks for 284 GiB: 32 heads of a 1024 x 32 block step with a context of
# 40,000.
DENSE_HEADS, DENSE_QUERIES, DENSE_KEYS = 32, 32768, 72768
SPARE_ADDRESS_BYTES = 32 << 30
SLOW_S = 1.0


def check_possible(injections: list[Injection]) -> None:
    """Refuse, before training, what this machine's torch cannot show.

    Raises:
        ConfigInvalid: fx-trace with a torch whose tracing flag belongs to the thread.
    """
    if not any(injection.failure is Failure.FX_TRACE for injection in injections):
        return
    with _TracingThread():
        shared = _is_tracing()
    if not shared:
        raise ConfigInvalid(
            f"--inject fx-trace: torch {torch.__version__} keeps the tracing flag for each thread, so the "
            "error cannot happen; allowed: torch 2.9 to 2.13"
        )


def fire(injection: Injection, draft: DraftModel | None) -> None:
    """Fail. Returns only if the failure shows itself later in the step.

    Raises:
        ConfigInvalid: the failure needs a drafter, and none is there yet.
    """
    when = f"step {injection.step}" if injection.phase is None else f"phase {injection.phase.value}"
    say(f"injecting {injection.failure.value} in {when}, rank {injection.rank}")
    if draft is not None:
        _IN_DRAFT.get(injection.failure, _nothing)(draft)
    elif injection.failure in _IN_DRAFT:
        raise ConfigInvalid(
            f"--inject {injection.failure.value}: there is no drafter in {when}, rank {injection.rank}; "
            "allowed: a step of a drafter rank"
        )
    _ANYWHERE.get(injection.failure, _silence)()


def _is_tracing() -> bool:
    """Whether this thread, which does not trace, believes it does; the reader was renamed once."""
    reader = getattr(_symbolic_trace, "is_fx_symbolic_tracing", None) or _symbolic_trace.is_fx_tracing
    return bool(reader())


class _TracingThread:
    """A thread that is inside torch.fx.symbolic_trace, and stays there until the context is left."""

    def __init__(self) -> None:
        self._inside = threading.Event()
        self._release = threading.Event()
        self._thread = threading.Thread(target=self._trace, name="tracer", daemon=True)

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self._release.set()
        self._thread.join()

    def start(self) -> None:
        self._thread.start()
        self._inside.wait()

    def _trace(self) -> None:
        def traced(x: torch.Tensor) -> torch.Tensor:
            self._inside.set()
            self._release.wait()
            return x + 1

        symbolic_trace(traced)


def _nothing(_: DraftModel) -> None:
    """This failure is not in the drafter."""


def _silence() -> None:
    """This failure shows itself in the drafter."""


def _fx_trace(draft: DraftModel) -> None:
    compiled = cast("DraftLayer", draft.layers[0]).compute

    # The thread starts at the very call: a tracer also patches nn.Module for the whole process, and the
    # target's modules, which are called before, would fail on that instead.
    def call_while_tracing(
        layer: DraftLayer,
        x: torch.Tensor,
        context: torch.Tensor,
        mask: AttentionMask,
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> torch.Tensor:
        _TracingThread().start()
        return compiled(layer, x, context, mask, cos, sin)

    use_layer_call(draft, call_while_tracing)


def _oom_dense() -> None:
    # A machine that overcommits would grant the address space and die when it is touched; a limit makes the
    # allocator say no, as a GPU's does.
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE_ADDRESS_BYTES, hard))
    q = torch.zeros(1, DENSE_HEADS, DENSE_QUERIES, 16)
    kv = torch.zeros(1, DENSE_HEADS, DENSE_KEYS, 16)
    warnings.simplefilter("default")
    with torch.compiler.set_stance("default"), torch.no_grad():
        flex_attention(q, kv, kv)


def _hang() -> None:
    mine, theirs = threading.Lock(), threading.Lock()
    both_held = threading.Barrier(2)

    def other() -> None:
        with theirs:
            both_held.wait()
            mine.acquire()

    threading.Thread(target=other, name="deadlocked", daemon=True).start()
    with mine:
        both_held.wait()
        theirs.acquire()


def _nan(draft: DraftModel) -> None:
    with torch.no_grad():
        draft.norm.weight[0] = float("nan")


def _sigkill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _segv() -> None:
    ctypes.string_at(0)


def _disk_full() -> None:
    write_durably(Path("/dev/full"), b"checkpoint")


def _exit() -> None:
    sys.exit(3)


def _python() -> None:
    missing: dict[str, int] = {}
    say(str(missing["layers.9.self_attn"]))


def _import() -> None:
    importlib.import_module("dflash_kernels")


_IN_DRAFT: dict[Failure, Callable[[DraftModel], None]] = {Failure.FX_TRACE: _fx_trace, Failure.NAN: _nan}
_ANYWHERE: dict[Failure, Callable[[], None]] = {
    Failure.OOM_DENSE: _oom_dense,
    Failure.HANG: _hang,
    Failure.SIGKILL: _sigkill,
    Failure.SEGV: _segv,
    Failure.DISK_FULL: _disk_full,
    Failure.EXIT: _exit,
    Failure.PYTHON: _python,
    Failure.IMPORT: _import,
}


def slow_down() -> None:
    """Wait as long as `slow` makes each step longer."""
    threading.Event().wait(SLOW_S)
