"""FlashAttention 4 with the drafter's mask: on a Hopper 1.45 times as fast as flex, and asked for by name.

Its backward pass adds to a query's gradient in the order in which tiles happen to be done, so the same step
done twice differs in its last bits; flex is always the same. It keeps no scores, compiled or not.

Shapes: R rows, Q queries, K keys, N heads, M key heads, H head dim; I tiles of queries, J of keys.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from trainer.errors import ConfigInvalid
from trainer.masks import TILE, key_intervals, tile_lists

if TYPE_CHECKING:
    from types import ModuleType

    from trainer.blocks import Anchors
    from trainer.masks import MaskRule

HOPPER = 9
HEAD_DIMS = (64, 128)
"""At 80, 4.0.0b36 gives wrong gradients of queries; wider ones have other tiles than ours."""
_CACHE = "FLASH_ATTENTION_CUTE_DSL_CACHE"


class FlashMask(NamedTuple):
    """What each query sees, and the tiles in which something or everything is seen, from both sides."""

    intervals: Tensor
    """int32 [R, 4, Q], of `key_intervals`."""
    kv_num: Tensor
    kv_order: Tensor
    full_kv_num: Tensor
    full_kv_order: Tensor
    q_num: Tensor
    q_order: Tensor
    full_q_num: Tensor
    full_q_order: Tensor


def flash_mask(anchors: Anchors, rule: MaskRule) -> FlashMask:
    """The mask of these anchors; nothing waits for the device."""
    return FlashMask(key_intervals(anchors, rule), *tile_lists(anchors, rule)[:8])


def attend_flash(q_RNQH: Tensor, k_RMKH: Tensor, v_RMKH: Tensor, mask: FlashMask) -> Tensor:
    """Attention [R, N, Q, H]; its memory is [R, Q, N, H]."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (q_RNQH, k_RMKH, v_RMKH))
    out_RQNH: Tensor = torch.ops.dflashctl.flash(q, k, v, *mask)[0]
    return out_RQNH.transpose(1, 2)


def require_flash(device: torch.device, dtype: torch.dtype, head_dim: int) -> None:
    """Allow FlashAttention 4 here, or say what is missing.

    Raises:
        ConfigInvalid: it is not installed, or not for this GPU, type or head dim.
    """
    wanted = "compute.attention: flash, but "
    if device.type != "cuda" or dtype != torch.bfloat16:
        raise ConfigInvalid(
            f"{wanted}it computes on a GPU in bfloat16, not on {device.type} in {dtype}; take flex"
        )
    if head_dim not in HEAD_DIMS:
        raise ConfigInvalid(f"{wanted}the head dim is {head_dim}, not 64 or 128; take flex")
    major, minor = torch.cuda.get_device_capability(device)
    if major != HOPPER:
        name = torch.cuda.get_device_name(device)
        raise ConfigInvalid(
            f"{wanted}{name} is of compute capability {major}.{minor}, not 9.0 (H100, H200); take flex"
        )
    try:
        found = importlib.util.find_spec("flash_attn.cute") is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        raise ConfigInvalid(
            f"{wanted}flash-attn-4 is not installed; pip install 'dflashctl[flash]', or take flex"
        )


@functools.cache
def import_kernels() -> ModuleType:
    """Imported at the first use, since it takes seconds; compiled kernels are kept beside Triton's."""
    os.environ.setdefault(f"{_CACHE}_ENABLED", "1")
    if triton := os.environ.get("TRITON_CACHE_DIR"):
        os.environ.setdefault(f"{_CACHE}_DIR", str(Path(triton).with_name("flash")))
    from trainer import flash_kernels

    return flash_kernels


_TILES = ("kv_num", "kv_order", "full_kv_num", "full_kv_order")
_QUERY_TILES = ("q_num", "q_order", "full_q_num", "full_q_order")


def _tensors(*names: str) -> str:
    return ", ".join(f"Tensor {name}" for name in names)


@torch.library.custom_op(
    "dflashctl::flash",
    mutates_args=(),
    schema=f"({_tensors('q', 'k', 'v', 'intervals', *_TILES, *_QUERY_TILES)}) -> (Tensor, Tensor)",
)
def _flash(q: Tensor, k: Tensor, v: Tensor, intervals: Tensor, *tiles: Tensor) -> tuple[Tensor, Tensor]:
    """Output [R, Q, N, H] and logsumexp [R, N, Q] of the scores."""
    return import_kernels().forward(q, k, v, intervals, tiles[:4], TILE)  # type: ignore[no-any-return]


@_flash.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, intervals: Tensor, *tiles: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    rows, queries, heads, width = q.shape
    return q.new_empty(rows, queries, heads, width), q.new_empty(rows, heads, queries, dtype=torch.float32)


@torch.library.custom_op(
    "dflashctl::flash_backward",
    mutates_args=(),
    schema=f"({_tensors('q', 'k', 'v', 'out', 'grad', 'logsumexp', 'intervals', *_QUERY_TILES)}) "
    "-> (Tensor, Tensor, Tensor)",
)
def _flash_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    grad: Tensor,
    logsumexp: Tensor,
    intervals: Tensor,
    *tiles: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    return import_kernels().backward(q, k, v, out, grad, logsumexp, intervals, tiles, TILE)  # type: ignore[no-any-return]


@_flash_backward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:  # noqa: ANN401
    q, k, v, intervals, *tiles = inputs
    out, logsumexp = output
    ctx.mark_non_differentiable(logsumexp)
    ctx.save_for_backward(q, k, v, out, logsumexp, intervals, *tiles[4:])


def _derive(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    q, k, v, out, logsumexp, intervals, *tiles = ctx.saved_tensors
    gradients = torch.ops.dflashctl.flash_backward(q, k, v, out, grad, logsumexp, intervals, *tiles)
    return (*gradients, None, *(None for _ in range(8)))


_flash.register_autograd(_derive, setup_context=_save)
