"""Wrong logins of one address are counted: after a few it is not listened to for a while."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

MAX_WRONG = 5
REST_S = 60.0
MAX_ADDRESSES = 1_000


@dataclass
class _Wrong:
    count: int
    since: float  # monotonic


class WrongLogins:
    """The wrong logins lately, by address; the oldest address is forgotten when there are too many."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Wrong] = OrderedDict()

    def wait_s(self, address: str, ticks: float) -> float:
        """Return how long the address is not listened to, 0 if it is."""
        wrong = self._known.get(address)
        if wrong is None or wrong.count < MAX_WRONG:
            return 0.0
        return max(0.0, wrong.since + REST_S - ticks)

    def add(self, address: str, ticks: float) -> None:
        """Count one."""
        wrong = self._known.pop(address, None)
        if wrong is None or ticks - wrong.since > REST_S:
            wrong = _Wrong(0, ticks)
        self._known[address] = _Wrong(wrong.count + 1, ticks)
        while len(self._known) > MAX_ADDRESSES:
            self._known.popitem(last=False)

    def forgive(self, address: str) -> None:
        """A right one came."""
        self._known.pop(address, None)
