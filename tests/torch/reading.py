"""An error where the host reads a tensor's value: on a GPU it would wait there, and the GPU after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    import torch

READS = {
    "_local_scalar_dense",  # item(), bool(), an index by a tensor
    "is_nonzero",
    "equal",
    "nonzero",  # and indexing by a mask: the size of what comes depends on values
    "masked_select",
    "_unique2",
    "bincount",
}


class NoReading(TorchDispatchMode):
    """Operators run as they do, but for those that read a value."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func.overloadpacket.__name__ in READS:
            raise AssertionError(f"{func} reads a value")
        return func(*args, **(kwargs or {}))


def reads(value: torch.Tensor) -> bool:
    """Whether the mode works at all."""
    try:
        with NoReading():
            bool(value > 0)
    except AssertionError:
        return True
    return False
