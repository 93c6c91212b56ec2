"""Every shape that training and evaluation will ask of the drafter, run once before the first step."""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING

import torch
from torch.distributed.fsdp import FSDPModule

from trainer.attention import refusing
from trainer.batch import Batch, single
from trainer.blocks import spread_anchors
from trainer.compiling import artifacts
from trainer.compiling.warmup import WarmUp, compiled, twin, warm_up
from trainer.data.buckets import Bucket, buckets
from trainer.flash import import_kernels
from trainer.importing import uncollected
from trainer.model import DraftLayer, DraftModel, use_layer_call
from trainer.target.api import Observation

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer.compiling.caches import CacheDirs
    from trainer.drafting import Drafting
    from trainer.job import Job


def compile_and_warm_up(
    job: Job, drafting: Drafting, wrapped: DraftModel, backend: str, dirs: CacheDirs, *, trains: bool
) -> WarmUp:
    """Compile the layer, and run it in every shape; after that a call that would compile is an error.

    `wrapped` is the drafter as it will be called, under whatever wrapper. What runs here is a twin of a few
    of its layers without one, since a collective would wait for ranks that wait for their turn.
    """
    call = refusing(compiled(DraftLayer.plain, backend), heads=drafting.shape.num_attention_heads)
    use_layer_call(wrapped, call)
    stand_in = dataclasses.replace(drafting, draft=_stand_in(drafting, wrapped))
    use_layer_call(stand_in.draft, call)  # type: ignore[arg-type]
    device = drafting.vocabulary.head.device
    flash = job.config.compute.attention == "flash" and device.type == "cuda"
    _import_compilers(inductor=backend == "inductor", flash=flash)
    job.alive()
    shapes = {
        "draft": dataclasses.asdict(drafting.shape),
        "buckets": [dataclasses.asdict(bucket) for bucket in buckets(job.config.data)],
        "loss": dataclasses.asdict(job.config.loss),
        "dtype": str(drafting.dtype),
        "attention": job.config.compute.attention,
        "sharded": isinstance(wrapped, FSDPModule),
        "trains": trains,
    }
    origin = artifacts.describe(device, backend, shapes) if backend == "inductor" else None
    return warm_up(
        _calls(stand_in, trains=trains),
        dirs=dirs,
        origin=origin,
        local_rank=job.topology.local_rank,
        beat=job.alive,
    )


def _import_compilers(*, inductor: bool, flash: bool) -> None:
    """Import now what the first call would: the other ranks of the node would wait while it did."""
    with uncollected():
        if inductor:
            importlib.import_module("torch._inductor.compile_fx")
        if flash:
            import_kernels()


def _stand_in(drafting: Drafting, wrapped: DraftModel) -> DraftModel:
    """A drafter with two layers of each kind: one whose input has no gradient, and one whose input has."""
    shape = drafting.shape
    sliding = min(2, shape.sliding_layers)
    full = min(2, shape.num_layers - shape.sliding_layers)
    few = dataclasses.replace(shape, num_layers=sliding + full, sliding_layers=sliding)
    with torch.device(drafting.vocabulary.head.device):
        made = DraftModel(few)
    pattern = wrapped.layers[0]
    made.layers = torch.nn.ModuleList(twin(lambda layer=layer: layer, pattern) for layer in made.layers)  # type: ignore[misc]
    return made


def _calls(drafting: Drafting, *, trains: bool) -> list[tuple[str, Callable[[], None]]]:
    device = drafting.vocabulary.head.device
    calls: list[tuple[str, Callable[[], None]]] = []
    for bucket in buckets(drafting.config.data):
        batch = _meaningless(bucket).to(device)
        name = f"{bucket.rows} x {bucket.context_tokens} tokens"
        if trains:
            calls.append((f"{name}, step", lambda batch=batch: _step(drafting, batch)))  # type: ignore[misc]
    largest = max(buckets(drafting.config.data), key=lambda bucket: bucket.context_tokens)
    batch = _meaningless(largest).to(device)
    calls.append(("drafting", lambda: _propose(drafting, batch, largest.anchors)))
    return calls


def _step(drafting: Drafting, batch: Batch) -> None:
    drafting.loss(batch, _observation(drafting, batch), 0).total.backward()
    drafting.draft.zero_grad(set_to_none=True)


def _propose(drafting: Drafting, batch: Batch, slots: int) -> None:
    anchors = spread_anchors(batch, slots, drafting.config.draft.block_size)
    drafting.propose(batch, _observation(drafting, batch).taps, anchors)


def _observation(drafting: Drafting, batch: Batch) -> Observation:
    width, device = drafting.shape.hidden_size, batch.tokens.device
    shape = (*batch.tokens.shape, len(drafting.tap_layers) * width)
    taps = torch.zeros(shape, dtype=drafting.dtype, device=device)
    last = torch.zeros((*batch.tokens.shape, width), dtype=drafting.dtype, device=device)
    return Observation(taps, last if drafting.wants_last else None)


def _meaningless(bucket: Bucket) -> Batch:
    return single(torch.zeros(bucket.rows, bucket.context_tokens, dtype=torch.long))
