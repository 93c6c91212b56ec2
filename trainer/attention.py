"""Attention: flex or FlashAttention 4 on a GPU, dense on the CPU, an error where a GPU would be dense.

`flex_attention` computes the whole score matrix, in float32, when it is not part of a compiled graph, and
says so in a warning at most. `attend` therefore asks dynamo itself whether it is being traced: whatever makes
Python run it instead (a tracer in another thread, the recompile limit, a compiler switched off, a call that
was never compiled) meets the refusal.

Shapes: R rows, A anchor slots, Q queries, K keys, N heads, M key heads, H head dim.
"""

from __future__ import annotations

import contextlib
import functools
from contextvars import ContextVar
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from trainer.errors import DenseAttentionRefused
from trainer.flash import FlashMask, attend_flash, flash_mask
from trainer.layers import repeat_heads
from trainer.masks import block_mask, dense_mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainer.blocks import Anchors
    from trainer.masks import MaskRule

AttentionMask = Tensor | BlockMask | FlashMask
SCORE_BYTES = 4
"""Dense attention computes its scores in float32, whatever its inputs."""

# Never the math kernel, which is dense attention by another name.
_FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
_oracle: ContextVar[bool] = ContextVar("oracle", default=False)
_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


def make_mask(
    anchors: Anchors, rule: MaskRule, device: torch.device, *, flash: bool = False
) -> AttentionMask:
    """The mask in the form that `attend` takes on this device; `flash` is for FlashAttention 4."""
    if flash:
        return flash_mask(anchors, rule)
    return block_mask(anchors, rule) if device.type == "cuda" else dense_mask(anchors, rule)


def attend(q_RNQH: Tensor, k_RMKH: Tensor, v_RMKH: Tensor, mask: AttentionMask | None) -> Tensor:
    """Attention [R, N, Q, H]; M key heads serve N query heads, and no mask is plain causal over Q = K tokens.

    Raises:
        DenseAttentionRefused: the mask is a BlockMask and this call is not part of a compiled graph, or it is
            dense and on a GPU.
    """
    if isinstance(mask, BlockMask):
        # Not is_compiling(), which reads a flag of the whole process that another thread may have set.
        if not torch.compiler.is_dynamo_compiling():
            raise _refusal(q_RNQH, k_RMKH, "flex attention was called outside of a compiled graph")
        return flex_attention(q_RNQH, k_RMKH, v_RMKH, block_mask=mask, enable_gqa=True)
    if isinstance(mask, FlashMask):
        return attend_flash(q_RNQH, k_RMKH, v_RMKH, mask)
    if mask is None and _refuses_dense(q_RNQH):
        return _fused_causal(q_RNQH, k_RMKH, v_RMKH)
    if _refuses_dense(q_RNQH):
        raise _refusal(q_RNQH, k_RMKH, "attention was given a dense mask")
    groups = q_RNQH.shape[1] // k_RMKH.shape[1]
    k_RNKH, v_RNKH = repeat_heads(k_RMKH, groups), repeat_heads(v_RMKH, groups)
    return F.scaled_dot_product_attention(q_RNQH, k_RNKH, v_RNKH, attn_mask=mask, is_causal=mask is None)


def refusing(compiled: Callable[_Params, _Result], *, heads: int = 1) -> Callable[_Params, _Result]:
    """A compiled function, given a BlockMask, that calls a hit recompile limit what it would have led to.

    Raises:
        DenseAttentionRefused: dynamo has compiled too often, and will not compile for these arguments.
    """

    @functools.wraps(compiled)
    def call(*args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        try:
            return compiled(*args, **kwargs)
        except FailOnRecompileLimitHit as error:
            mask = next((arg for arg in (*args, *kwargs.values()) if isinstance(arg, BlockMask)), None)
            if mask is None:
                raise
            queries, keys = mask.seq_lengths
            size = _size(len(mask.kv_num_blocks), heads, queries, keys)
            raise DenseAttentionRefused(
                "attention: dynamo hit its recompile limit, past which the call runs uncompiled, and dense "
                f"attention would take {size}; keep shapes constant, TORCH_LOGS=recompiles tells what changed"
            ) from error

    return call


@contextlib.contextmanager
def oracle() -> Iterator[None]:
    """Allow dense attention on a GPU, in this thread: for tests, which compare with it."""
    token = _oracle.set(True)
    try:
        yield
    finally:
        _oracle.reset(token)


def dense_bytes(*, batch: int, heads: int, queries: int, keys: int) -> int:
    """Bytes of one layer's score matrix."""
    return batch * heads * queries * keys * SCORE_BYTES


def refuse_dense(*, device: str, batch: int, heads: int, queries: int, keys: int, limit_bytes: int) -> None:
    """Allow dense attention of this shape, or say why not. Called once for each shape, before the first use.

    Raises:
        DenseAttentionRefused: the device is a GPU, or the scores exceed `limit_bytes`.
    """
    size = _size(batch, heads, queries, keys)
    if device != "cpu":
        raise DenseAttentionRefused(
            f"attention on {device}: dense attention would take {size}; on a GPU attention is compiled flex, "
            "however small the shape; set compute.device=cpu for dense attention"
        )
    if dense_bytes(batch=batch, heads=heads, queries=queries, keys=keys) > limit_bytes:
        raise DenseAttentionRefused(
            f"attention on {device}: dense attention would take {size}, over compute.dense_limit_bytes, "
            f"{limit_bytes:,}; lower data.batch_rows, data.anchors or data.context_tokens"
        )


def refuse_backend(*, device: str, backend: str, batch: int, heads: int, queries: int, keys: int) -> None:
    """Allow this torch.compile backend, or say why not. Called once, before anything is compiled.

    Dynamo's debugging backends run the captured graph operator by operator, flex attention's being the dense
    one.

    Raises:
        DenseAttentionRefused: the device is a GPU and the backend is not the one that writes kernels.
    """
    if device != "cpu" and backend != "inductor":
        size = _size(batch, heads, queries, keys)
        raise DenseAttentionRefused(
            f"attention on {device}: compute.compile_backend is {backend}, which runs flex attention as "
            f"dense attention and would take {size}; set compute.compile_backend=inductor"
        )


def _fused_causal(q_RNTH: Tensor, k_RMTH: Tensor, v_RMTH: Tensor) -> Tensor:
    """SDPA on a GPU by a kernel that keeps no scores; an error of SDPA's own if none takes these inputs."""
    shared = (
        q_RNTH.dtype != torch.float32
    )  # float32 has one such kernel, and it wants a head for each query's
    if not shared:
        groups = q_RNTH.shape[1] // k_RMTH.shape[1]
        k_RMTH, v_RMTH = repeat_heads(k_RMTH, groups), repeat_heads(v_RMTH, groups)
    with sdpa_kernel(_FUSED):
        return F.scaled_dot_product_attention(q_RNTH, k_RMTH, v_RMTH, is_causal=True, enable_gqa=shared)


def _refuses_dense(q_RNQH: Tensor) -> bool:
    return q_RNQH.is_cuda and (torch.compiler.is_dynamo_compiling() or not _oracle.get())


def _refusal(q_RNQH: Tensor, k_RMKH: Tensor, what: str) -> DenseAttentionRefused:
    size = _size(q_RNQH.shape[0], q_RNQH.shape[1], q_RNQH.shape[2], k_RMKH.shape[2])
    return DenseAttentionRefused(
        f"attention on {q_RNQH.device.type}: {what}, and dense attention would take {size}; call it through "
        "torch.compile with a BlockMask, from one thread while no other traces or compiles"
    )


def _size(batch: int, heads: int, queries: int, keys: int) -> str:
    needed = dense_bytes(batch=batch, heads=heads, queries=queries, keys=keys)
    shape = f"{batch} x {heads} heads x {queries} queries x {keys} keys x {SCORE_BYTES} bytes"
    return f"{needed:,} bytes ({needed / 2**30:.2f} GiB) of scores a layer ({shape})"
