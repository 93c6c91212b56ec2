"""What a forecast says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.target.api import TargetShape

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Item:
    """Something that takes memory, disk or traffic."""

    name: str
    bytes: int
    formula: str

    def __str__(self) -> str:
        return f"{self.bytes / GIB:9.3f} GiB  {self.name}: {self.formula}"


@dataclass(frozen=True, slots=True)
class Rank:
    """A kind of rank at the moment of its step at which it holds the most."""

    role: str
    """drafter, target or colocated (both in one)."""
    moment: str
    """target's forward, loss or backward."""
    items: tuple[Item, ...]

    @property
    def total(self) -> int:
        """Bytes."""
        return sum(item.bytes for item in self.items)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Every kind of rank, and what goes to disk and over the wire."""

    config: Config
    shape: TargetShape
    drafters: int
    memory_bytes: int
    target_parameters: int | None
    ranks: tuple[Rank, ...]
    elsewhere: tuple[Item, ...]

    @property
    def worst(self) -> Rank:
        """The rank that takes the most."""
        return max(self.ranks, key=lambda rank: rank.total)

    @property
    def total(self) -> int:
        """Bytes of the worst rank."""
        return self.worst.total

    def lines(self) -> list[str]:
        """For people: each rank's items, the largest first, then disk and traffic."""
        told = []
        for rank in self.ranks:
            told.append(f"{rank.role} rank, most in its {rank.moment}: {rank.total / GIB:.2f} GiB")
            items = sorted(rank.items, key=lambda item: -item.bytes)
            told += [f"  {item}" for item in items if item.bytes]
        told.append("disk and traffic")
        return told + [f"  {item}" for item in self.elsewhere]
