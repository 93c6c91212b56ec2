"""One thread at a time calls compiled code or traces.

Up to torch 2.13 `is_fx_symbolic_tracing()` reads a flag of the whole process on every call of a compiled
function, warm or not: a call beside another thread's trace raises "Detected that you are using FX to
symbolically trace a dynamo-optimized function". From 2.14 on the flag is the thread's, and threads that
compile side by side fail in other ways. So calls and traces take turns here.

Forward and backward of a first step are one turn, since a backward is compiled when it is first run: two
threads between those two deadlock, one in dynamo's compile lock and one waiting for the autograd thread.
"""

from __future__ import annotations

import functools
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

P = ParamSpec("P")
R = TypeVar("R")

WAIT_S = 900.0
_LOCK = threading.RLock()
_holder: str | None = None


@contextmanager
def held() -> Iterator[None]:
    """The process's turn, around everything that traces or compiles; a thread may take it again within.

    Raises:
        RuntimeError: another thread kept it for a quarter of an hour.
    """
    global _holder
    if not _LOCK.acquire(timeout=WAIT_S):
        raise RuntimeError(
            f"compile gate: thread {threading.current_thread().name} waited {WAIT_S:.0f} s for thread "
            f"{_holder}, which traces or compiles; it hangs, so end the process"
        )
    before, _holder = _holder, threading.current_thread().name
    try:
        yield
    finally:
        _holder = before
        _LOCK.release()


def guarded(compiled: Callable[P, R]) -> Callable[P, R]:
    """`compiled`, called in this thread's turn alone."""

    @functools.wraps(compiled)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if _inside_backward():
            # A recomputed forward runs in the autograd thread for one that waits in backward(), and that one
            # may hold the gate: it would wait for itself.
            return compiled(*args, **kwargs)
        with held():
            return compiled(*args, **kwargs)

    return call


def require_main_thread(what: str) -> None:
    """Refuse to compile elsewhere: the heartbeat's thread is the one that compiles, and there is one.

    Raises:
        RuntimeError: this is another thread.
    """
    current = threading.current_thread()
    if current is not threading.main_thread():
        raise RuntimeError(f"{what}: called in thread {current.name}; only the main thread compiles")


def _inside_backward() -> bool:
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001 - torch has no public question for it
