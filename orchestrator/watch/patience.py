"""How long an act has been held back, and when it may be tried again. Pure."""

from __future__ import annotations

from dataclasses import dataclass

CALL_AFTER_S = 600.0
BACKOFF_S = (2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
LATE_BACKOFF_S = 300.0  # once a person was called
SEEN_WITHIN_S = 30.0  # a started attempt shows itself, and a stopped one is gone, by then


@dataclass
class Patience:
    """One run's. All times are seconds of a clock that never goes back."""

    tries: int = 0
    not_before: float = 0.0
    _since: float | None = None
    _told: frozenset[str] = frozenset()
    _is_called: bool = False

    def is_due(self, now: float) -> bool:
        """Whether the act may be tried."""
        return now >= self.not_before

    def hold(self, names: frozenset[str], now: float) -> bool:
        """The act cannot happen because of `names`; returns whether that is news."""
        self._since = now if self._since is None else self._since
        is_news, self._told = not names <= self._told, self._told | names
        return is_news

    def refuse(self, name: str, now: float) -> bool:
        """The act was tried and refused: hold it, and longer each time; returns whether that is news."""
        wait_s = LATE_BACKOFF_S if self._is_called else BACKOFF_S[min(self.tries, len(BACKOFF_S) - 1)]
        self.tries += 1
        self.not_before = now + wait_s
        return self.hold(frozenset((name,)), now)

    def done(self, now: float) -> None:
        """The act was carried out; it is repeated only if nothing of it shows."""
        self.reset()
        self.not_before = now + SEEN_WITHIN_S

    def held_s(self, now: float) -> float:
        """Return for how long the act has been held back."""
        return 0.0 if self._since is None else now - self._since

    def calls(self, now: float) -> bool:
        """Whether it has lasted so long that a person must know; true once."""
        if self._is_called or self.held_s(now) < CALL_AFTER_S:
            return False
        self._is_called = True
        return True

    def reset(self) -> None:
        """Nothing is held back: the run lives, or a new attempt began."""
        self.tries, self.not_before, self._since = 0, 0.0, None
        self._told, self._is_called = frozenset(), False
