"""Who else watches a run, as the guest tells it. Nothing is decided by it: the attempt's number decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.wire import Message


@dataclass(frozen=True, kw_only=True)
class Onlooker:
    """A watcher: `user` at `host`. `is_me` if it is the one that asks."""

    user: str
    host: str
    pid: str
    acts: bool
    is_me: bool = False

    @property
    def text(self) -> str:
        """Who it is, for people."""
        return (
            f"{self.user}@{self.host} (pid {self.pid}), {'which acts' if self.acts else 'which only looks'}"
        )

    @property
    def json(self) -> dict[str, Any]:
        """Plain data."""
        return {"user": self.user, "host": self.host, "pid": self.pid, "acts": self.acts}


def onlookers(message: Message, run: str) -> tuple[Onlooker, ...]:
    """Return who watches `run`, the longest first.

    Raises:
        TypeError, LookupError: It is not what the wire's contract says.
    """
    rows = message["watchers"]
    if not isinstance(rows, list):
        raise TypeError(f"watchers: {type(rows).__name__} is no list")
    return tuple(
        Onlooker(
            user=str(row["user"]), host=str(row["host"]), pid=str(row["pid"]),
            acts=row["acts"] is True, is_me=row.get("me") is True,
        )
        for row in rows
        if row.get("runs") is None or run in row["runs"]
    )  # fmt: skip
