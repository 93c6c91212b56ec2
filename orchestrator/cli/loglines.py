"""Lines of a log for a person: which are shown, from which time on, and made safe for a terminal."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.durations import ALLOWED, parse_duration
from orchestrator.errors import ConfigError
from orchestrator.sizes import parse_size
from orchestrator.terminal import clean, one_line, plain

if TYPE_CHECKING:
    from typing import TextIO

    from orchestrator.pattern import Pattern

MAX_LINE = 1 << 20
MAX_TAIL = 1 << 40
_CLOCK = re.compile(r"\d\d?:\d\d(:\d\d)?")


@dataclass
class LineFilter:
    """Which lines are wanted; one that is wanted meets all that is given."""

    pattern: Pattern | None = None
    rank: int | None = None
    has_ranks: bool = False  # some line so far was marked with a rank
    has_lines: bool = False
    has_kept: bool = False

    @classmethod
    def of(cls, grep: str | None, rank: int | None) -> LineFilter:
        """Return the filter for what was typed.

        Raises:
            ConfigError: `grep` is no regular expression, or none that takes linear time.
        """
        if grep is None:
            return cls(rank=rank)
        from orchestrator.pattern import Pattern, PatternError

        try:
            return cls(pattern=Pattern(grep), rank=rank)
        except PatternError as error:
            raise ConfigError(
                f"--grep: {one_line(repr(grep))}: {error}",
                hint="write the special characters with a \\ before",
            ) from error

    @property
    def is_any(self) -> bool:
        """Whether it leaves anything out."""
        return self.pattern is not None or self.rank is not None

    def keeps(self, text: str) -> bool:
        """Whether the line, plain, is wanted."""
        self.has_lines = True
        if self.rank is not None:
            from orchestrator.classify.text import split_rank

            rank, _ = split_rank(text)
            self.has_ranks = self.has_ranks or rank is not None
            if rank != self.rank:
                return False
        is_kept = self.pattern is None or self.pattern.search(text)
        self.has_kept = self.has_kept or is_kept
        return is_kept

    def remark(self) -> str | None:
        """Return what to say at the end if no line was kept, and why none can be of its rank."""
        if self.has_kept or not self.has_lines:
            return None
        if self.rank is None or self.has_ranks:
            return "no line matches" if self.is_any else None
        return (
            f"--rank {self.rank}: no line here is marked with a rank; torchrun's `--tee 3` marks them, and "
            "the bundled trainer marks the warnings of each rank"
        )


class LogPrinter:
    """Writes the wanted lines of a log that comes in pieces; what comes out of a container is hostile."""

    def __init__(self, chosen: LineFilter, out: TextIO, *, raw: bool, colour: bool) -> None:
        self._chosen = chosen
        self._out = out
        self._raw = raw
        self._colour = colour
        self._rest = b""

    def write(self, data: bytes) -> None:
        """Take a piece: its whole lines are written, the rest waits for its end."""
        if self._raw and not self._chosen.is_any:
            self._out.buffer.write(data)
            self._out.buffer.flush()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:  # a line that never ends would be kept for ever
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._line(line)
        self._out.flush()

    def finish(self) -> None:
        """Write the last line, which has no end."""
        if self._rest:
            self.write(b"\n")

    def _line(self, line: bytes) -> None:
        # Of a progress bar the last state; the return before a newline is only a line's end.
        text = line.rstrip(b"\r").rsplit(b"\r", 1)[-1].decode("utf-8", "replace")
        if self._chosen.is_any and not self._chosen.keeps(plain(text, MAX_LINE)):
            return
        if self._raw:
            self._out.flush()
            self._out.buffer.write(line + b"\n")
            self._out.buffer.flush()
        else:
            self._out.write((clean(text) if self._colour else plain(text)) + "\n")


class Tail(NamedTuple):
    """How much of a log's end is meant; neither: all of it."""

    lines: int | None = None
    size: int | None = None  # bytes

    @classmethod
    def of(cls, text: str) -> Tail:
        """Return what was typed: lines, or a size with its unit; 0 is all.

        Raises:
            ConfigError: It is neither.
        """
        try:
            if text.strip().isdecimal():
                return cls(lines=min(int(text), MAX_TAIL) or None)
            return cls(size=min(parse_size(text), MAX_TAIL) or None)
        except ValueError as error:
            raise ConfigError(
                f"--tail: {one_line(repr(text))} is neither a number of lines nor a size",
                hint="write 200 for lines, or 64KiB or 2MiB",
            ) from error


def since_fields(text: str, now: datetime) -> dict[str, Any]:
    """Return what `tail` is asked for: so long ago by the container's clock, or a time.

    Raises:
        ConfigError: It is neither a duration nor a time.
    """
    try:
        return {"since_ago_s": parse_duration(text)}
    except ValueError:
        at = _time_of(text.strip(), now)
    if at is None:
        raise ConfigError(
            f"--since: {one_line(repr(text))} is neither how long ago nor a time",
            hint=f"write {ALLOWED}, or a time such as 19:30 or 2026-11-29T19:30Z",
        )
    if at > now:
        raise ConfigError(f"--since: {one_line(repr(text))} is not yet", hint="a time in the past is meant")
    return {"since": max(0.0, at.timestamp())}


def _time_of(text: str, now: datetime) -> datetime | None:
    """Return the moment; without a zone it is this machine's, and a clock alone means its last such time."""
    here = now.astimezone()
    try:
        if _CLOCK.fullmatch(text):
            clock = time.fromisoformat(text if text[1] != ":" else f"0{text}")
            at = datetime.combine(here.date(), clock).astimezone()
            return at if at <= now else at - timedelta(days=1)
        if len(text) == len("2026-11-29"):
            return datetime.combine(date.fromisoformat(text), time()).astimezone()
        at = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
    except (ValueError, OverflowError):
        return None
    return at.astimezone()


def since_remark(by: str, *, follows: bool) -> str | None:
    """Return what to say of how the beginning was found; None if there is nothing to say."""
    if by == "none":
        return (
            "--since: neither dates in the log's lines nor metrics tell its times, so it begins at its start"
        )
    if by == "quiet" and not follows:
        return "--since: nothing was written since then"
    return None
