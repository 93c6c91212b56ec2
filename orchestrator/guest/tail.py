"""`tail`: bytes of an attempt's log, by offset, from its end or from a time on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator import wire
from orchestrator.guest import asked, clock, files, logtime, paths
from orchestrator.guest.masked import MaskedFile
from orchestrator.guest.masks import RunMasks
from orchestrator.guest.refusal import Refusal

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.guest.link import Link

FOLLOW_S = 0.2
LAST_BYTES = 64 << 10
LONGEST_AGO_S = 366 * 86400.0
LATEST = 4e9  # epoch seconds


def run(verb: str, request: wire.Message, link: Link) -> None:
    """Answer `log` lines, then `end` with the log's size; with `follow`, until stdin ends."""
    del verb
    place = paths.run_dir(request)
    number = _attempt(place, request)
    log = place.attempt(number) / "log"
    offset = asked.integer(request, "offset", -1)
    if offset < 0:
        offset = _from_end(log, request)
    since = _since(request)
    if since is not None:
        start, by = logtime.offset_since(place.attempt(number), since)
        offset = max(offset, start)
        link.send("since", {"run": place.name, "attempt": number, "offset": offset, "by": by})
    follows = bool(request.get("follow"))
    end = offset + asked.integer(request, "limit", asked.LARGEST)
    masked = MaskedFile(log, RunMasks(place).current)
    while True:
        piece = masked.piece(offset, wire.MAX_CHUNK_BYTES, is_final=not follows)[: end - offset]
        if piece:
            fields = {"run": place.name, "attempt": number, "offset": offset, "data": wire.pack_bytes(piece)}
            link.send("log", fields)
            offset += len(piece)
        elif offset >= end or not follows or _has_gone(link):
            break
    link.send("end", {"run": place.name, "attempt": number, "size": files.size_of(log)})


def _from_end(log: Path, request: wire.Message) -> int:
    """Return where the last so many lines or bytes of the log begin."""
    lines = asked.integer(request, "last_lines", 0)
    if lines:
        return files.last_lines(log, lines)
    return max(0, files.size_of(log) - asked.integer(request, "last_bytes", LAST_BYTES))


def _attempt(place: paths.RunDir, request: wire.Message) -> int:
    """Return the attempt meant: by number, the newest, or with `previous` the one before it.

    Raises:
        Refusal: There is none.
    """
    attempts = place.attempts()
    there = ", ".join(map(str, attempts)) or "none"
    if request.get("previous"):
        if len(attempts) < 2:
            message = f'run "{place.name}": no attempt before the newest (there are: {there})'
            raise Refusal("not_found", message)
        return attempts[-2]
    number = asked.integer(request, "attempt", attempts[-1] if attempts else 0)
    if number not in attempts:
        raise Refusal("not_found", f'run "{place.name}": no attempt {number} (there are: {there})')
    return number


def _since(request: wire.Message) -> float | None:
    """Return the time to begin at, by this clock: `since` is one, `since_ago_s` is so long ago."""
    if request.get("since_ago_s") is not None:
        return clock.epoch() - asked.seconds(request, "since_ago_s", 0.0, low=0.0, high=LONGEST_AGO_S)
    if request.get("since") is not None:
        return asked.seconds(request, "since", 0.0, low=0.0, high=LATEST)
    return None


def _has_gone(link: Link) -> bool:
    """Wait for the next look; whether stdin ended meanwhile. Lines that come are pings."""
    deadline = clock.ticking() + FOLLOW_S
    while not link.lines.is_ended and (left_s := deadline - clock.ticking()) > 0:
        link.lines.message(left_s)
    return link.lines.is_ended
