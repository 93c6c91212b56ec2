"""Whether kernels of our own can be compiled here; below all that has some."""

from __future__ import annotations

import functools
import importlib.util


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed; a torch for CPUs comes without it."""
    return importlib.util.find_spec("triton") is not None
