"""Random numbers as pure functions of what they are for, so that a resumed run draws the same ones."""

from __future__ import annotations

import hashlib

import torch


def generator(seed: int, purpose: str, index: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator that depends on nothing but its arguments; a GPU draws other numbers than the CPU."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{index}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)
