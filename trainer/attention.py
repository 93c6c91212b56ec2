"""Who sees whom in a DFlash block, and the refusal of dense attention that would not fit.

Keys are [context 0..T-1 | slot 0's block | slot 1's block | ...]; queries are the blocks alone:

                 context              own block        other blocks
    query of     strictly before      all of it, or    nothing
    slot a       the anchor           causally

A slot without an anchor (keep mask false) sees only its own block: nothing reads it, and softmax over an
empty row would be NaN.

Shapes: B batch, T context tokens, A anchor slots, S block tokens, Q = A*S, K = T+Q, N heads, H head dim.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.errors import DenseAttentionRefused
from trainer.layers import repeat_heads

SCORE_BYTES = 4  # dense attention computes its scores in float32, whatever its inputs


def draft_mask(
    anchors_BA: Tensor, keep_BA: Tensor, *, num_context: int, block_size: int, causal: bool = False
) -> Tensor:
    """The boolean mask [B, 1, Q, K], true where a query sees a key.

    With `causal`, a token sees its block only up to itself: the mask of the target's verification.
    """
    num_slots = anchors_BA.shape[1]
    slot_Q = torch.arange(num_slots, device=anchors_BA.device).repeat_interleave(block_size)
    offset_Q = torch.arange(block_size, device=anchors_BA.device).repeat(num_slots)
    before_anchor_BQT = (
        torch.arange(num_context, device=anchors_BA.device)[None, None, :] < anchors_BA[:, slot_Q, None]
    )
    sees_context_BQT = before_anchor_BQT & keep_BA[:, slot_Q, None]
    own_block_QQ = slot_Q[:, None] == slot_Q[None, :]
    if causal:
        own_block_QQ = own_block_QQ & (offset_Q[None, :] <= offset_Q[:, None])
    sees_block_BQQ = own_block_QQ.expand(anchors_BA.shape[0], -1, -1)
    return torch.cat((sees_context_BQT, sees_block_BQQ), dim=-1)[:, None]


def dense_attention(q_BNQH: Tensor, k_BMKH: Tensor, v_BMKH: Tensor, mask_B1QK: Tensor | None) -> Tensor:
    """Attention [B, N, Q, H] by PyTorch's SDPA; causal if there is no mask.

    M key heads serve N query heads.
    """
    groups = q_BNQH.shape[1] // k_BMKH.shape[1]
    return F.scaled_dot_product_attention(
        q_BNQH,
        repeat_heads(k_BMKH, groups),
        repeat_heads(v_BMKH, groups),
        attn_mask=mask_B1QK,
        is_causal=mask_B1QK is None,
    )


def dense_bytes(*, batch: int, heads: int, queries: int, keys: int) -> int:
    """Bytes of one layer's score matrix."""
    return batch * heads * queries * keys * SCORE_BYTES


def refuse_dense(*, device: str, batch: int, heads: int, queries: int, keys: int, limit_bytes: int) -> None:
    """Allow dense attention of this shape, or say why not. Called once for each shape, before the first use.

    Raises:
        DenseAttentionRefused: the device is a GPU, or the scores exceed `limit_bytes`.
    """
    needed = dense_bytes(batch=batch, heads=heads, queries=queries, keys=keys)
    shape = f"{batch} x {heads} heads x {queries} queries x {keys} keys x {SCORE_BYTES} bytes"
    size = f"{needed:,} bytes ({needed / 2**30:.2f} GiB) of scores a layer ({shape})"
    if device != "cpu":
        raise DenseAttentionRefused(
            f"attention on {device}: dense attention would take {size}, and this trainer has no compiled "
            "flex attention yet; set compute.device=cpu"
        )
    if needed > limit_bytes:
        raise DenseAttentionRefused(
            f"attention on {device}: dense attention would take {size}, over compute.dense_limit_bytes, "
            f"{limit_bytes:,}; lower data.batch_rows, data.anchors or data.context_tokens"
        )
