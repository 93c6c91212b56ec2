"""`capture`: the pane of a tmux session that may not be ours, and the GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.guest import asked, gpu, masks, session
from orchestrator.guest.refusal import Refusal

if TYPE_CHECKING:
    from orchestrator import wire
    from orchestrator.guest.link import Link

LINES = 2000
MAX_LINE_CHARS = 10_000
MAX_CHARS = 100_000  # escaped six to one it still fits a line of the wire


def run(verb: str, request: wire.Message, link: Link) -> None:
    """Answer `capture`, `gpu`, `end`."""
    del verb
    name, socket = request.get("session"), request.get("socket")
    if not isinstance(name, str) or not name or not name.isprintable() or ":" in name:
        raise Refusal("bad_request", f"session: {name!r} is no name of a tmux session")
    if socket is not None and (not isinstance(socket, str) or not socket or "/" in socket or "\0" in socket):
        raise Refusal("bad_request", f"socket: {socket!r} is no name of a tmux socket")
    pane = session.capture(name, socket, asked.integer(request, "lines", LINES, low=1))
    fields = {"session": name, "exists": pane is not None, "dead": False, "pid": None, "lines": []}
    if pane is not None:
        fields.update(dead=pane.is_dead, pid=pane.pid, lines=_masked(_bounded(pane.lines)))
    link.send("capture", fields)
    link.send("gpu", gpu.once())
    link.send("end")


def _masked(lines: list[str]) -> list[str]:
    masker = masks.own()
    return [masker.text(line) for line in lines]


def _bounded(lines: tuple[str, ...]) -> list[str]:
    """The last lines that fit."""
    kept: list[str] = []
    room = MAX_CHARS
    for line in reversed(lines):
        short = line[:MAX_LINE_CHARS]
        room -= len(short) + 1
        if room < 0:
            break
        kept.append(short)
    return kept[::-1]
