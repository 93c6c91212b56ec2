"""When a message may go: each thing once, not too many at a time, not at night unless it is grave. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from datetime import datetime, time, timedelta, tzinfo
from typing import TYPE_CHECKING

from orchestrator.notify.message import MAX_LINES, Key, Kind, Message, Severity, words

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_HELD = 500
MAX_KEYS = 10_000


@dataclass(frozen=True)
class QuietHours:
    """From `begin` to `end` by the clock on the wall only what is at least `passes` goes."""

    begin: time
    end: time
    passes: Severity = Severity.URGENT
    zone: tzinfo | None = None  # None: this machine's

    def holds(self, now: datetime) -> bool:
        """Whether `now` is within them; they may go past midnight."""
        local = now.astimezone(self.zone).time()
        if self.begin <= self.end:
            return self.begin <= local < self.end
        return local >= self.begin or local < self.end


@dataclass(frozen=True)
class Rate:
    """At most so many messages within so many seconds."""

    messages: int = 10
    per_s: float = 600.0


class Policy:
    """One watch's. `severity` changes what a kind of message counts as; None for one that is not wanted."""

    def __init__(
        self,
        rate: Rate,
        quiet: QuietHours | None = None,
        severity: Mapping[Kind, Severity | None] | None = None,
        told: Iterable[Key] = (),
    ) -> None:
        self._rate = rate
        self._quiet = quiet
        self._severity = severity or {}
        self._told: dict[Key, None] = dict.fromkeys(told)  # in the order told
        # What is urgent has a rate of its own: no flood of lesser messages may stand before it.
        self._sent_at = {is_urgent: deque[datetime](maxlen=rate.messages) for is_urgent in (True, False)}
        self._held: list[Message] = []
        self._num_left_out = 0

    def admit(self, message: Message, now: datetime) -> Message | None:
        """Return the message if it may go now; one that may not is held for the summary, or is no news."""
        if all(key in self._told for key in message.keys):
            return None
        severity = self._severity.get(message.kind, message.severity)
        if severity is None:
            return None
        self._remember(message.keys)
        message = replace(message, severity=severity)
        is_urgent = severity >= Severity.URGENT
        if self._is_quiet(message, now) or not self._has_room(now, is_urgent=is_urgent):
            self._hold(message)
            return None
        self._sent_at[is_urgent].append(now)
        return message

    def tick(self, now: datetime) -> Message | None:
        """Return what was held, as one message, once it may go."""
        is_urgent = any(message.severity >= Severity.URGENT for message in self._held)
        if not self._held or not self._has_room(now, is_urgent=is_urgent):
            return None
        if all(self._is_quiet(message, now) for message in self._held):
            return None
        self._sent_at[is_urgent].append(now)
        return self._summary(now)

    def flush(self, now: datetime) -> Message | None:
        """Return what is held, as one message: nobody is left to tell it later."""
        return self._summary(now) if self._held else None

    def _is_quiet(self, message: Message, now: datetime) -> bool:
        quiet = self._quiet
        return quiet is not None and message.severity < quiet.passes and quiet.holds(now)

    def _has_room(self, now: datetime, *, is_urgent: bool) -> bool:
        sent_at = self._sent_at[is_urgent]
        if len(sent_at) < self._rate.messages:
            return True
        age = now - sent_at[0]
        # A clock that was set back must not hold everything for as long as it was set back.
        return age >= timedelta(seconds=self._rate.per_s) or age < timedelta()

    def _remember(self, keys: Iterable[Key]) -> None:
        self._told.update(dict.fromkeys(keys))
        while len(self._told) > MAX_KEYS:
            del self._told[next(iter(self._told))]

    def _hold(self, message: Message) -> None:
        if len(self._held) < MAX_HELD:
            self._held.append(message)
        else:
            self._num_left_out += 1

    def _summary(self, now: datetime) -> Message:
        """One message of what was held, the gravest first; one alone goes as it is."""
        held, left_out = self._held, self._num_left_out
        self._held, self._num_left_out = [], 0
        if len(held) == 1 and not left_out:
            return held[0]
        grave = sorted(held, key=lambda message: -message.severity)
        lines = [f"{message.at.astimezone().strftime('%H:%M')} {message.title}" for message in grave]
        more = max(0, len(lines) - MAX_LINES + 1) + left_out
        if more:
            lines = [*lines[: MAX_LINES - 1], f"... and {more} more; `dflashctl events RUN` has them all"]
        title, body = words(f"{len(held) + left_out} messages since {_clock(held[0].at)}", lines)
        return Message(
            kind=Kind.SUMMARY,
            severity=grave[0].severity,
            at=now,
            run=grave[0].run,
            target=grave[0].target,
            attempt=None,
            title=title,
            body=body,
            keys=tuple(key for message in held for key in message.keys),
        )


def _clock(at: datetime) -> str:
    return at.astimezone().strftime("%H:%M")
