"""The memory that a rank's worst step takes, item by item.

A forecast counts what the trainer's own code asks for when each draft layer is compiled by itself. It is an
upper estimate: a compiler may compute again what is counted here as saved. The allocator's fragmentation is
not in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.plan.dims import (
    FLOAT32,
    Dims,
    dims_of,
    draft_parameters,
    layer_matrices,
    target_parameters,
)
from trainer.plan.result import GIB, Forecast, Item, Rank
from trainer.plan.saved import norm_bytes, saved_after, saved_before, saved_in_layers, tensors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainer.config import Config, ParallelConfig
    from trainer.target.api import TargetShape

CONTEXT_BYTES = GIB
"""A GPU's context, the libraries' workspaces and the collectives' buffers."""
OBSERVATIONS = {"colocated": (1, 1), "split": (2, 3), "cached": (1, 1)}
"""Micro-batches whose hidden states a drafter and a target rank hold: a split's are sent ahead."""


def forecast(
    config: Config,
    shape: TargetShape,
    drafters: int = 1,
    *,
    memory_bytes: int = 0,
    target_parameters: int | None = None,
) -> Forecast:
    """What the worst step takes. `auto` device and type are read as a GPU and bfloat16.

    `memory_bytes` is the device's, for parallel.shard = auto; 0 takes compute.memory_limit_bytes.
    `target_parameters` is the target's own count where it is not the dense model of its shape.
    """
    dims = dims_of(config, shape)
    memory_bytes = memory_bytes or config.compute.memory_limit_bytes
    shared = drafters if shards(config, dims, drafters, memory_bytes) else 1
    target = _target_weights(dims, shape, target_parameters)
    accumulates = config.optim.micro_batches > drafters
    keeps = drafters > 1 or accumulates
    drafter = _resident(dims, shared, replicas=drafters // shared, accumulates=accumulates, keeps=keeps)
    held, sent = OBSERVATIONS[config.parallel.placement]
    if config.parallel.placement == "colocated":
        resident = [*drafter, target, *_observations(config, dims, 1)]
        moments = {
            "target's forward": _target_forward(dims, shape),
            **_moments(config, dims, shared, keeps=keeps),
        }
        ranks = [_most("colocated", resident, moments)]
    else:
        vocabulary = tensors(dims, "target's embedding and head", "V D", dims.c, 2)
        resident = [*drafter, vocabulary, *_observations(config, dims, held)]
        ranks = [_most("drafter", resident, _moments(config, dims, shared, keeps=keeps))]
        resident = [target, *_observations(config, dims, sent), _context(dims)]
        ranks.append(_most("target", resident, {"target's forward": _target_forward(dims, shape)}))
    elsewhere = _elsewhere(config, dims)
    return Forecast(config, shape, drafters, memory_bytes, target_parameters, tuple(ranks), elsewhere)


def shards(config: Config, dims: Dims, drafters: int, memory_bytes: int) -> bool:
    """Whether these drafters share weights and optimizer state out."""
    return drafters > 1 and shares_out(config.parallel, draft_parameters(dims), memory_bytes)


def shares_out(config: ParallelConfig, num_parameters: int, memory_bytes: int) -> bool:
    """FSDP2 rather than DDP, for a drafter of so many parameters on several ranks.

    `auto` does where a replica's parameters, gradients and moments fill more than half of the memory; 0 is
    memory that is not known.
    """
    if config.shard != "auto":
        return config.shard == "full"
    return 0 < memory_bytes < 2 * 4 * FLOAT32 * num_parameters


def _most(role: str, resident: Iterable[Item], moments: dict[str, list[Item]]) -> Rank:
    name, items = max(moments.items(), key=lambda pair: sum(item.bytes for item in pair[1]))
    return Rank(role, name, (*resident, *items))


def _context(dims: Dims) -> Item:
    return Item("GPU context and workspaces", CONTEXT_BYTES if dims.on_gpu else 0, "allowance")


def _resident(dims: Dims, shared: int, *, replicas: int, accumulates: bool, keeps: bool) -> list[Item]:
    """What a drafter holds from step to step. DDP's gradients are views of its buckets, which it keeps."""
    parameters = draft_parameters(dims)
    whole, part = f"{parameters:,} parameters", -(-parameters // shared)
    of = f"{whole} over {shared} drafters" if shared > 1 else whole
    items = [
        Item("parameters", FLOAT32 * part, f"{of}, 4 bytes each"),
        Item("AdamW's moments", 2 * FLOAT32 * part, f"2 x {of}, 4 bytes each"),
        _context(dims),
    ]
    if keeps:
        items.append(Item("gradients", FLOAT32 * part, f"{of}, 4 bytes each"))
    if shared > 1:
        # The layer at work, the one fetched ahead, and a gradient as it came and as it is reduced.
        layer = layer_matrices(dims)
        each = f"{dims.c} bytes each three times, 4 once"
        items.append(
            Item("gathered layers", (3 * dims.c + FLOAT32) * layer, f"{layer:,} numbers of a layer, {each}")
        )
    if accumulates and max(shared, replicas) > 1:
        # Until a step's last micro-batch nothing is reduced, and gradients are outside of buckets and shares.
        items.append(
            Item("gradients not reduced yet", FLOAT32 * parameters, f"{whole}, 4 bytes each, accumulated")
        )
    return items


def _observations(config: Config, dims: Dims, count: int) -> list[Item]:
    items = [tensors(dims, "taps", "R T E", dims.c, count)]
    if config.loss.labels == "target":
        items.append(tensors(dims, "target's last hidden states", "R T D", dims.c, count))
    return items


def _moments(config: Config, dims: Dims, shared: int, *, keeps: bool) -> dict[str, list[Item]]:
    """The drafter's candidates for the most.

    Where it keeps no gradients, they come layer by layer, as what a layer saved goes.
    """
    before, layers, after = saved_before(config, dims, shared), saved_in_layers(dims), saved_after(dims)
    saved = [*before, *layers, *after]
    # A GPU's kernels write the gradient of the text's own labels over the logits.
    logits = 3 if config.loss.labels == "target" else 1 if dims.on_gpu else 2
    chunk = tensors(dims, "loss chunk, logits and their softmax", "C V", FLOAT32, logits)
    gradient = tensors(dims, "gradient of the hidden states", "R Q D", dims.c)
    inputs = 4 if config.loss.labels == "target" else 3
    copies = tensors(dims, "loss chunk, its hidden states and their gradient", "C D", dims.c, inputs)
    attention = [
        tensors(dims, "gradients of q", "R Q N H", dims.c, 2),
        tensors(dims, "gradients of k and v", "R K M H", dims.c, 4),
    ]
    if config.compute.attention == "flash":
        attention += [
            tensors(dims, "gradient of q, summed", "R Q N H", FLOAT32),
            tensors(dims, "gradients of k and v, summed", "R K M H", FLOAT32, 2),
        ]
    mlp = [tensors(dims, "gradients of gate, up and their product", "R Q F", dims.c, 3)]
    layer = max(attention, mlp, key=lambda items: sum(item.bytes for item in items))
    context = tensors(dims, "gradient of the context", "R T D", dims.c, 2)
    residual = tensors(dims, "gradient of x", "R Q D", dims.c, 2)
    moments = {
        "loss": [*saved, gradient, chunk, copies],
        "last norm's backward": [*saved, gradient, tensors(dims, "its terms", "R Q D", norm_bytes(dims), 4)],
        "backward": [*before, *layers, context, residual, *layer],
    }
    if not keeps:
        one, whole = layer_matrices(dims), draft_parameters(dims)
        text = f"{one:,} numbers of a layer, {dims.c} bytes each as they come and 4 kept"
        moments["backward"].append(Item("gradients", (FLOAT32 + dims.c) * one, text))
        every = Item("gradients", FLOAT32 * whole, f"{whole:,} parameters, 4 bytes each")
        first_layer = saved_in_layers(dims, 1)
        moments["backward's end"] = [*before, *first_layer, context, residual, *layer, every]
    return moments


def _target_weights(dims: Dims, shape: TargetShape, count: int | None) -> Item:
    count = target_parameters(shape) if count is None else count
    return Item("target's weights", dims.c * count, f"{count:,} parameters, {dims.c} bytes each")


def _target_forward(dims: Dims, shape: TargetShape) -> list[Item]:
    """One layer's tensors for the longest document, which is run by itself and without a cache."""
    width = max(
        3 * shape.intermediate_size,
        3 * (shape.num_attention_heads + shape.num_key_value_heads) * shape.head_dim,
    )
    inside = Item(
        "target's layer, inside",
        dims.X * width * dims.c,
        f"X * {width:,} = {dims.X:,} x {width:,}, {dims.c} bytes each",
    )
    return [
        inside,
        tensors(dims, "target's layer, x before and after its norm", "X D", dims.c, 2),
        tensors(dims, "target's layer, its norm in float32", "X D", FLOAT32, 2),
        tensors(dims, "target's taps of a document", "X E", dims.c, 2),
    ]


def _elsewhere(config: Config, dims: Dims) -> tuple[Item, ...]:
    parameters = draft_parameters(dims)
    saved = 3 * FLOAT32 * parameters
    kept = config.checkpoint.keep + 1
    width = dims.E + (dims.D if config.loss.labels == "target" else 0)
    items = [
        Item("checkpoint", saved, f"3 x {parameters:,} numbers, 4 bytes each"),
        Item(
            "checkpoints on disk", kept * saved, f"{kept} of them: checkpoint.keep, and the one being written"
        ),
    ]
    if config.parallel.placement == "cached":
        text = f"1,000 tokens x {width:,} numbers, {dims.c} bytes each"
        items.append(Item("hidden states on disk, for 1,000 tokens", 1000 * width * dims.c, text))
    if config.parallel.placement == "split":
        text = f"{dims.R} rows x {dims.T:,} tokens x {width:,} numbers, {dims.c} bytes each"
        items.append(Item("sent for a micro-batch", dims.R * dims.T * width * dims.c, text))
    return tuple(items)
