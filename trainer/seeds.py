"""Random numbers as pure functions of what they are for, so that a resumed run draws the same ones."""

from __future__ import annotations

import hashlib

import torch


def generator(seed: int, purpose: str, index: int) -> torch.Generator:
    """A CPU generator that depends on nothing but its arguments."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{index}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
