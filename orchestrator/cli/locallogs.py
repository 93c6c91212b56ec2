"""`logs --local`: a run's logs from the mirror on this machine; nothing is connected to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from orchestrator.cli.context import SETTINGS, age_text
from orchestrator.errors import NotFound
from orchestrator.sizes import size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from orchestrator.cli.loglines import LogPrinter, Tail
    from orchestrator.mirror import AttemptLog, Hole, RunMirror

FOLLOW_S = 0.5
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What of a run's logs: as the options of `logs` say it."""

    attempt: int | None
    previous: bool
    since: Mapping[str, Any]  # as `since_fields` gives it; empty if no time is meant
    tail: Tail
    follow: bool


def print_local(
    mirror: RunMirror,
    wanted: Wanted,
    known: Sequence[int],
    printer: LogPrinter,
    remark: Callable[[str], None],
) -> None:
    """Print what is wanted, and remark what is missing; `known`: the attempts on record.

    Raises:
        NotFound: The mirror has no such attempt, or no bytes of it any more.
    """
    log = mirror.attempt(_attempt(mirror.attempts, wanted, known, remark))
    if log.known_bytes == 0 and log.holes:
        raise NotFound(f"attempt {log.attempt}: {_why(log.holes[-1])}")
    _tell_state(mirror, log, remark)
    start = _from_end(log, wanted.tail)
    if wanted.since:
        start = max(start, _since(log, wanted, remark))
    at = _print(log, start, printer, remark)
    if wanted.follow:
        _follow(mirror, log, at, printer, remark)


def hint(mirror: RunMirror, name: str) -> str | None:
    """Return what to say of the copy where the container cannot be reached; None if there is none."""
    logs = [mirror.attempt(number) for number in mirror.attempts]
    times = [log.last_at for log in logs if log.last_at is not None]
    if not times:
        return None
    return f"a copy is kept here, as of {_age(max(times))} ago: `dflashctl logs {name} --local` reads it"


def copied_lines(mirror: RunMirror, tail_bytes: int) -> list[str]:
    """Return the end of the newest log that is kept here, below a line that says so; empty if none is."""
    for number in reversed(mirror.attempts):
        log = mirror.attempt(number)
        if log.known_bytes and log.last_at is not None:
            start = max(0, log.size - tail_bytes)
            data = b"".join(piece.data for piece in log.read(start, log.size - start))
            head = f"(from the copy on this machine: attempt {number}, as of {_age(log.last_at)} ago)"
            return [head, *data.decode("utf-8", "replace").splitlines()]
    return []


def _attempt(kept: Sequence[int], wanted: Wanted, known: Sequence[int], remark: Callable[[str], None]) -> int:
    if not kept:
        raise NotFound("no log of it is kept here", hint="`dflashctl watch` keeps one while it watches")
    there = ", ".join(map(str, kept))
    every = sorted({*kept, *known})
    if wanted.previous and len(every) < 2:
        raise NotFound(f"no attempt before the newest (the mirror has: {there})")
    number = wanted.attempt or (every[-2] if wanted.previous else every[-1])
    if number in kept:
        return number
    if wanted.attempt or wanted.previous:
        raise NotFound(f"attempt {number} is not in the mirror (there are: {there})")
    remark(f"attempt {number} is not in the mirror; this is attempt {kept[-1]}")
    return kept[-1]


def _tell_state(mirror: RunMirror, log: AttemptLog, remark: Callable[[str], None]) -> None:
    """Say what is read: a copy is of the past."""
    end = "; the attempt has ended" if log.notes.ended_at else ""
    age = f", as of {_age(log.last_at)} ago" if log.last_at is not None else ""
    remark(f"from the mirror: attempt {log.attempt}{age}{end}")
    for each in log.notes.emptied:
        files = mirror.folder / f"attempt-{log.attempt}.emptied-{each.number}.*.gz"
        if any(files.parent.glob(files.name)):
            text = f"its log was emptied at {_clock(each.at)}; the {size_text(each.length)} before that:"
            remark(f"{text} zcat {files}")


def _from_end(log: AttemptLog, tail: Tail) -> int:
    if tail.lines is None:
        return max(0, log.size - tail.size) if tail.size else 0
    left, stop = tail.lines + 1, log.size  # the first newline from the end only ends the last line
    if b"".join(piece.data for piece in log.read(stop - 1, 1)) != b"\n":
        left -= 1
    while stop > 0:
        begin = max(0, stop - BLOCK_BYTES)
        for piece in reversed(list(log.read(begin, stop - begin))):
            end = len(piece.data)
            while (end := piece.data.rfind(b"\n", 0, end)) >= 0:
                left -= 1
                if left == 0:
                    return piece.offset + end + 1
        stop = begin
    return 0


def _since(log: AttemptLog, wanted: Wanted, remark: Callable[[str], None]) -> int:
    ago_s = wanted.since.get("since_ago_s")
    at = wanted.since["since"] if ago_s is None else SETTINGS.clock.now().timestamp() - ago_s
    start = log.since(at)
    if start is None and not wanted.follow:
        remark("--since: nothing came since then")
    return log.size if start is None else start


def _print(log: AttemptLog, at: int, printer: LogPrinter, remark: Callable[[str], None]) -> int:
    """Print from byte `at` on; return the byte after the last. What is missing is said in its place."""
    holes, stop = log.holes, log.size
    for piece in log.read(at, stop - at):
        if piece.offset > at:
            _tell_missing(holes, at, piece.offset, printer, remark)
        printer.write(piece.data)
        at = piece.offset + len(piece.data)
    if at < stop:
        _tell_missing(holes, at, stop, printer, remark)
    return max(at, stop)


def _tell_missing(
    holes: Sequence[Hole], start: int, stop: int, printer: LogPrinter, remark: Callable[[str], None]
) -> None:
    printer.finish()
    here = [hole for hole in holes if hole.start < stop and start < hole.stop]
    for hole in here:
        remark(f"bytes {max(start, hole.start)} to {min(stop, hole.stop)} are missing here: {_why(hole)}")
    if not here:
        remark(f"bytes {start} to {stop} are missing here: their file is damaged")


def _why(hole: Hole) -> str:
    if hole.removed is None:
        return "no watch saw them"
    gone = hole.removed
    return f"the copy was removed on {_clock(gone.at)} by {gone.by} ({size_text(gone.size)})"


def _follow(
    mirror: RunMirror, log: AttemptLog, at: int, printer: LogPrinter, remark: Callable[[str], None]
) -> None:
    """Go on as a watch writes it, until Ctrl-C."""
    is_told = False
    while True:
        emptied = len(log.notes.emptied)
        log.refresh()
        if len(log.notes.emptied) != emptied:
            printer.finish()
            remark("the log was emptied; this is its new beginning")
            at = 0
        if log.size > at:
            at = _print(log, at, printer, remark)
        is_watched = mirror.is_watched
        if not is_watched and not is_told:
            remark("no watch writes the mirror now, so that nothing new comes until one does")
        is_told = not is_watched
        SETTINGS.clock.sleep(FOLLOW_S)


def _age(at: float) -> str:
    return age_text(datetime.fromtimestamp(at, timezone.utc))


def _clock(text: str) -> str:
    """Return a time of our own files as a person here reads it."""
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return text
    return at.astimezone().strftime("%Y-%m-%d %H:%M")
