"""One compiled draft layer, warmed up for every shape it will see; a recompile after that is an error.

One thread of one process compiles and calls. Up to torch 2.13 the flag that says "FX is tracing" belongs to
the whole process, so that a thread that traces breaks every other thread's call of a compiled function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch._dynamo import config as dynamo_config
from torch._dynamo.utils import counters

from trainer.attention import refuse_dense
from trainer.blocks import spread_anchors
from trainer.model import DraftLayer

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.drafting import Drafting
    from trainer.target import TargetShape


def compile_layer(drafting: Drafting) -> None:
    """Have the drafter call its layers through one compiled function; the first calls compile it."""
    if hasattr(dynamo_config, "fail_on_recompile_limit_hit"):
        # Without it, a shape that comes after the limit runs uncompiled and says nothing.
        dynamo_config.fail_on_recompile_limit_hit = True
    drafting.draft.call_layer = torch.compile(
        DraftLayer.forward,
        backend=drafting.config.compute.compile_backend,
        fullgraph=True,
        dynamic=False,
    )


def check_shapes(config: Config, target: TargetShape) -> None:
    """Refuse what would not fit, before anything is allocated or moved.

    Raises:
        DenseAttentionRefused: a shape of this run is too large for dense attention, or the device is a GPU.
    """
    queries = config.data.anchors * config.draft.block_size
    refuse_dense(
        device=config.compute.device,
        batch=config.data.batch_rows,
        heads=target.num_attention_heads,
        queries=queries,
        keys=config.data.context_tokens + queries,
        limit_bytes=config.compute.dense_limit_bytes,
    )


def run_every_shape(drafting: Drafting) -> None:
    """Forward and backward of a step, and the two shapes of evaluation, on meaningless tokens."""
    config = drafting.config
    tokens_BT = torch.zeros(config.data.batch_rows, config.data.context_tokens, dtype=torch.long)
    drafting.step_loss(tokens_BT, 0).backward()
    drafting.draft.zero_grad(set_to_none=True)
    with torch.no_grad():
        for batch, slots in ((config.data.batch_rows, config.data.anchors), (1, 1)):
            taps = drafting.target.taps(tokens_BT[:batch], drafting.tap_layers)
            anchors, _ = spread_anchors(batch, config.data.context_tokens, slots, config.draft.block_size)
            drafting.propose(tokens_BT[:batch], taps, anchors)


def forbid_recompiles() -> None:
    """From here on a call that would compile raises instead."""
    torch.compiler.set_stance("fail_on_recompile")


def num_graphs() -> int:
    """Graphs compiled by this process so far."""
    return int(counters["stats"]["unique_graphs"])
