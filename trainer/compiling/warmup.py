"""Everything is compiled before the first step, once; after that a call that would compile raises.

What is called belongs to a throwaway twin of the layer, without DDP or FSDP around it: ranks of a node
compile one after the other, so a collective in a call would wait for a rank that waits for its turn. Graphs
take parameters as inputs, so the twin's serve every real layer (`twin`).
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch
from torch._dynamo import config as dynamo_config
from torch._dynamo.utils import counters
from torch.distributed.fsdp import FSDPModule

from trainer.compiling import artifacts, gate, kernels, pairs
from trainer.compiling.caches import INDUCTOR, TRITON
from trainer.compiling.serial import node_turn
from trainer.console import say, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    from trainer.compiling.artifacts import Origin
    from trainer.compiling.caches import CacheDirs

P = ParamSpec("P")
R = TypeVar("R")
Layer = TypeVar("Layer", bound="nn.Module")

RECOMPILE_LIMIT = 256
"""Graphs of one function: for each bucket one with and one without gradients, the first layer, the window."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmUp:
    """What warm-up compiled, in how long, and how much of it the cache had (inductor alone has one)."""

    graphs: int
    seconds: float
    waited_s: float
    cache_hits: int
    cache_misses: int
    total_graphs: int

    def recompiles(self) -> int:
        """Graphs of this process since then: on purpose, since others raise."""
        return num_graphs() - self.total_graphs


def compiled(function: Callable[P, R], backend: str) -> Callable[P, R]:
    """`function` compiled whole, a graph for each shape, called through the process's gate.

    A shape beyond the recompile limit is an error: by default it runs uncompiled and says nothing.
    """
    dynamo_config.fail_on_recompile_limit_hit = True
    dynamo_config.recompile_limit = RECOMPILE_LIMIT
    return gate.guarded(torch.compile(function, backend=backend, fullgraph=True, dynamic=False))


def twin(build: Callable[[], Layer], layer: nn.Module) -> Layer:
    """A layer of its own weights that graphs cannot tell from `layer`, which may be under DDP or FSDP2.

    FSDP2 changes the class of what it wraps, marks all modules in it and gathers weights in the type of its
    policy; graphs are guarded by all three. `build` makes a layer of the same shape, on the device.
    """
    made = build()
    if isinstance(layer, FSDPModule):
        policy = layer._get_fsdp_state()._mp_policy  # noqa: SLF001 - FSDP2 has no public question for it
        made = made.to(policy.param_dtype or torch.float32)
    for mine, theirs in zip(made.modules(), layer.modules(), strict=True):
        mine.__class__ = theirs.__class__
        mine.training = theirs.training
        for mark in ("_is_fsdp_managed_module", "_fsdp_use_orig_params"):
            if mark in vars(theirs):
                setattr(mine, mark, vars(theirs)[mark])
    return made


def warm_up(
    calls: Sequence[tuple[str, Callable[[], None]]],
    *,
    dirs: CacheDirs,
    origin: Origin | None,
    local_rank: int,
    beat: Callable[[], None],
) -> WarmUp:
    """Run every call once in this process's turn, then all again to see that nothing compiles any more.

    Each call is a bucket's forward and backward, or its forward without gradients, with no collective in it.
    Saved artifacts of `origin` are loaded before and saved after, unless this node's caches already have all
    of it; with None, they are never thought to. Random state is kept.

    Raises:
        RuntimeError: a call compiles again the second time, or this is not the main thread.
    """
    gate.require_main_thread("warm-up")
    graphs, hits, misses = num_graphs(), *_cache_counts()
    marks = _marks(dirs, origin)
    with _random_state_kept():
        with node_turn(
            dirs.node,
            local_rank,
            beat,
            lambda holder: _sweep(dirs, holder),
            lambda: _is_filled(dirs, origin, marks),
        ) as turn:
            begun = time.monotonic()
            if turn.alone and origin is not None:
                _tell(artifacts.load(dirs.artifacts, origin).line, kernels.load(dirs, origin, os.environ))
            elif origin is not None:
                say(f"compile cache: filled by this node before, {dirs.node}")
            with torch.compiler.set_stance("default"):
                _run(calls, beat)
            seconds = time.monotonic() - begun
            if turn.alone and origin is not None:
                _save(dirs, origin, seconds)
                for mark in marks:
                    mark.parent.mkdir(parents=True, exist_ok=True)
                    mark.touch()
        found, compiled_anew = _cache_counts()
        forbid_recompiles()
        _run_again(calls, beat)
    return WarmUp(
        graphs=num_graphs() - graphs,
        seconds=seconds,
        waited_s=turn.waited_s,
        cache_hits=found - hits,
        cache_misses=compiled_anew - misses,
        total_graphs=num_graphs(),
    )


def _sweep(dirs: CacheDirs, holder: str) -> None:
    """Drop what a killed compile may have left half written: the C++ compiler writes in place."""
    warn(f"compile: {holder} ended while it compiled; its cache under {dirs.node} is dropped")
    for path in (dirs.inductor, dirs.triton, dirs.flash):
        for entry in path.iterdir() if path.is_dir() else ():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _marks(dirs: CacheDirs, origin: Origin | None) -> list[Path]:
    """Files that say that a cache holds all of this origin; in the caches, so that they go with them."""
    if origin is None:
        return []
    name = f"filled-{pairs.fingerprint(kernels.describe(origin, os.environ))}"
    places = {INDUCTOR: dirs.inductor, TRITON: dirs.triton}
    return [Path(os.environ.get(variable) or path) / name for variable, path in places.items()]


def _is_filled(dirs: CacheDirs, origin: Origin | None, marks: list[Path]) -> bool:
    """Whether nothing is left to compile, nor to save."""
    if origin is None or not all(mark.exists() for mark in marks):
        return False
    return pairs.is_whole(dirs.artifacts, origin.fingerprint)


def _save(dirs: CacheDirs, origin: Origin, compile_s: float) -> None:
    """What was compiled, for other starts; this one needs none of it, and goes on without."""
    try:
        _tell(
            artifacts.save(dirs.artifacts, origin, compile_s=compile_s),
            kernels.save(dirs, origin, os.environ, compile_s=compile_s),
        )
    except OSError as problem:
        warn(f"compile cache: not saved in {dirs.artifacts}: {problem}")


def _tell(*lines: str | None) -> None:
    for line in lines:
        if line is not None:
            say(line)


def forbid_recompiles() -> None:
    """From here on a call that would compile raises, whichever function it is of."""
    torch.compiler.set_stance("fail_on_recompile")


@contextmanager
def allowing_compile() -> Iterator[None]:
    """Compile on purpose, in the gate: for evaluation, which meets shapes that training does not."""
    gate.require_main_thread("compiling on purpose")
    with gate.held(), torch.compiler.set_stance("default"):
        yield


def num_graphs() -> int:
    """Graphs that dynamo captured in this process so far."""
    return int(counters["stats"]["unique_graphs"])


def _run(calls: Sequence[tuple[str, Callable[[], None]]], beat: Callable[[], None]) -> None:
    for _, call in calls:
        beat()
        with gate.held():
            call()
    beat()


def _run_again(calls: Sequence[tuple[str, Callable[[], None]]], beat: Callable[[], None]) -> None:
    for name, call in calls:
        beat()
        before = num_graphs(), _cache_counts()
        with gate.held():
            call()
        # The stance sees forwards; a backward that is compiled late shows in the cache's counts alone.
        if (num_graphs(), _cache_counts()) != before:
            raise RuntimeError(
                f"warm-up of {name}: it compiled again with the same shapes; TORCH_LOGS=recompiles says why"
            )


def _cache_counts() -> tuple[int, int]:
    found = counters["inductor"]
    misses = found["fxgraph_cache_miss"] + found["fxgraph_cache_bypass"]
    return int(found["fxgraph_cache_hit"]), int(misses)


@contextmanager
def _random_state_kept() -> Iterator[None]:
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        yield
