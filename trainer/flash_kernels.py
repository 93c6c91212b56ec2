"""The calls of FlashAttention 4, which is imported here alone; no annotation here may become text."""

import cutlass
from cutlass import cute
from flash_attn.cute import utils
from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch
from flash_attn.cute.interface import _flash_attn_bwd, _flash_attn_fwd
from torch import Tensor


@cute.jit
def _sees(
    batch: cute.TensorSSA,
    _head: cute.TensorSSA,
    query: cute.TensorSSA,
    key: cute.TensorSSA,
    _lengths,
    aux_tensors,
) -> cute.TensorSSA:
    """Whether a query sees a key; asked in tiles that are seen in part."""
    bounds = aux_tensors[0]
    a = utils.scalar_to_ssa(bounds[batch[0], 0, query[0]], cutlass.Int32)
    b = utils.scalar_to_ssa(bounds[batch[0], 1, query[0]], cutlass.Int32)
    c = utils.scalar_to_ssa(bounds[batch[0], 2, query[0]], cutlass.Int32)
    d = utils.scalar_to_ssa(bounds[batch[0], 3, query[0]], cutlass.Int32)
    return ((key >= a) & (key < b)) | ((key >= c) & (key < d))


def forward(
    q: Tensor, k: Tensor, v: Tensor, intervals: Tensor, tiles: tuple[Tensor, ...], tile: int
) -> tuple[Tensor, Tensor]:
    """Output [R, Q, N, H] and logsumexp [R, N, Q]."""
    sparse = BlockSparseTensorsTorch(*tiles, block_size=(tile, tile))
    out, logsumexp, *_ = _flash_attn_fwd(
        q,
        k,
        v,
        mask_mod=_sees,
        block_sparse_tensors=sparse,
        aux_tensors=[intervals],
        return_lse=True,
        pack_gqa=False,  # tiles are those of one head
    )
    return out, logsumexp


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    grad: Tensor,
    logsumexp: Tensor,
    intervals: Tensor,
    tiles: tuple[Tensor, ...],
    tile: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    sparse = BlockSparseTensorsTorch(*tiles, block_size=(tile, tile))
    dq, dk, dv = _flash_attn_bwd(
        q, k, v, out, grad, logsumexp, mask_mod=_sees, block_sparse_tensors=sparse, aux_tensors=[intervals]
    )
    return dq, dk, dv
