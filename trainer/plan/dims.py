"""The numbers that everything else follows from, by the letters of the trainer's shape suffixes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.target.api import TargetShape

FLOAT32 = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Dims:
    """Of one micro-batch: R rows, T context tokens, A anchor slots, S block tokens, Q = A*S, K = T+Q.

    Of the drafter: L layers, N heads, M key heads, H head dim, D model dim, F MLP width, E = taps * D. V is
    the vocabulary, X the longest document, C the logits' rows of a loss chunk. Short buckets have the same
    tokens and slots in all, and less attention.
    """

    R: int
    T: int
    A: int
    S: int
    Q: int
    K: int
    L: int
    N: int
    M: int
    H: int
    D: int
    F: int
    E: int
    V: int
    X: int
    C: int
    on_gpu: bool
    """`auto` is a GPU."""
    c: int
    """Bytes of a number of the arithmetic's type."""


def dims_of(config: Config, shape: TargetShape) -> Dims:
    """Put a configuration and a target's shape together."""
    data, draft, compute = config.data, config.draft, config.compute
    on_gpu = compute.device != "cpu"
    wide = compute.dtype == "float32" or (compute.dtype == "auto" and not on_gpu)
    taps = len(config.target.layer_ids) or draft.num_target_layers
    block_tokens = data.anchors * draft.block_size
    chunk = min(-(-config.loss.chunk_tokens // draft.block_size), data.batch_rows * data.anchors)
    return Dims(
        R=data.batch_rows,
        T=data.context_tokens,
        A=data.anchors,
        S=draft.block_size,
        Q=block_tokens,
        K=data.context_tokens + block_tokens,
        L=draft.num_layers,
        N=draft.num_attention_heads or shape.num_attention_heads,
        M=draft.num_key_value_heads or shape.num_key_value_heads,
        H=draft.head_dim or shape.head_dim,
        D=shape.hidden_size,
        F=draft.intermediate_size or shape.intermediate_size,
        E=taps * shape.hidden_size,
        V=shape.vocab_size,
        X=min(data.max_document_tokens or data.context_tokens, data.context_tokens),
        C=chunk * (draft.block_size - 1),
        on_gpu=on_gpu,
        c=FLOAT32 if wide else 2,
    )


def draft_tensors(dims: Dims) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter of the drafter, as it is published."""
    queries, keys = dims.N * dims.H, dims.M * dims.H
    layer = {
        "input_layernorm": (dims.D,),
        "post_attention_layernorm": (dims.D,),
        "self_attn.q_proj": (queries, dims.D),
        "self_attn.k_proj": (keys, dims.D),
        "self_attn.v_proj": (keys, dims.D),
        "self_attn.o_proj": (dims.D, queries),
        "self_attn.q_norm": (dims.H,),
        "self_attn.k_norm": (dims.H,),
        "mlp.gate_proj": (dims.F, dims.D),
        "mlp.up_proj": (dims.F, dims.D),
        "mlp.down_proj": (dims.D, dims.F),
    }
    tensors = {"fc": (dims.D, dims.E), "hidden_norm": (dims.D,), "norm": (dims.D,)}
    tensors |= {f"layers.{index}.{name}": size for index in range(dims.L) for name, size in layer.items()}
    return {f"{name}.weight": size for name, size in tensors.items()}


def draft_parameters(dims: Dims) -> int:
    """How many numbers those are."""
    return sum(math.prod(size) for size in draft_tensors(dims).values())


def draft_matrices(dims: Dims) -> int:
    """How many of them are in matrices, which are cast where they are used."""
    return sum(math.prod(size) for size in draft_tensors(dims).values() if len(size) == 2)


def layer_matrices(dims: Dims) -> int:
    """How many of those are one layer's."""
    return (draft_matrices(dims) - dims.E * dims.D) // dims.L


def target_parameters(shape: TargetShape) -> int:
    """Of a dense decoder of this shape with an embedding and a head of their own.

    A target of another kind (experts, linear attention) has its own number: count that and pass it.
    """
    width, head_dim = shape.hidden_size, shape.head_dim
    attention = 2 * width * (shape.num_attention_heads + shape.num_key_value_heads) * head_dim
    layer = attention + 3 * width * shape.intermediate_size + 2 * width + 2 * head_dim
    return 2 * shape.vocab_size * width + shape.num_hidden_layers * layer + width
