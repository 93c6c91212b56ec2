"""`tail`: bytes of an attempt's log, by offset or from its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator import wire
from orchestrator.guest import asked, clock, files, paths
from orchestrator.guest.masked import MaskedFile
from orchestrator.guest.masks import RunMasks
from orchestrator.guest.refusal import Refusal

if TYPE_CHECKING:
    from orchestrator.guest.link import Link

FOLLOW_S = 0.2
LAST_BYTES = 64 << 10


def run(verb: str, request: wire.Message, link: Link) -> None:
    """Answer `log` lines, then `end` with the log's size; with `follow`, until stdin ends."""
    del verb
    place = paths.run_dir(request)
    attempts = place.attempts()
    number = asked.integer(request, "attempt", attempts[-1] if attempts else 0)
    if number not in attempts:
        there = ", ".join(map(str, attempts)) or "none"
        raise Refusal("not_found", f'run "{place.name}": no attempt {number} (there are: {there})')
    log = place.attempt(number) / "log"
    offset = asked.integer(request, "offset", -1)
    if offset < 0:
        offset = max(0, files.size_of(log) - asked.integer(request, "last_bytes", LAST_BYTES))
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


def _has_gone(link: Link) -> bool:
    """Wait for the next look; whether stdin ended meanwhile. Lines that come are pings."""
    deadline = clock.ticking() + FOLLOW_S
    while not link.lines.is_ended and (left_s := deadline - clock.ticking()) > 0:
        link.lines.message(left_s)
    return link.lines.is_ended
