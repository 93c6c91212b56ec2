"""Whether an attempt still stands where whoever wants to end it saw it stand.

A stop may be long on its way: behind a connection that stalled, say. What goes on again is left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.guest import asked, files
from orchestrator.guest.refusal import Refusal

if TYPE_CHECKING:
    from orchestrator import wire
    from orchestrator.guest.paths import RunDir

METRICS_BYTES = 64 << 10


def check(place: RunDir, request: wire.Message) -> None:
    """Refuse if the newest attempt went on since it was seen as the request's `unless_moved` says.

    Raises:
        Refusal: `moved`, with what shows it.
    """
    seen, newest = request.get("unless_moved"), place.attempts()[-1:]
    if seen is None or not newest:
        return
    if not isinstance(seen, dict):
        raise Refusal("bad_request", f"unless_moved: {seen!r} must map what was seen to its value")
    sign = _sign_of_life(place, newest[0], seen)
    if sign is not None:
        message = f'run "{place.name}": attempt {newest[0]} goes on: {sign}; it is not stopped'
        raise Refusal("moved", message, attempt=newest[0])


def _sign_of_life(place: RunDir, number: int, seen: wire.Message) -> str | None:
    directory = place.attempt(number)
    beat = files.read_json(directory / "heartbeat.json")
    before = (seen.get("phase"), seen.get("step"))
    if beat is not None and before[0] is not None and (beat.get("phase"), beat.get("step")) != before:
        return f"{beat.get('phase')} at step {beat.get('step')}, after {before[0]} at step {before[1]}"
    if seen.get("metrics_offset") is not None:
        offset = asked.integer(seen, "metrics_offset", 0)
        if b"\n" in files.read_piece(directory / "metrics.jsonl", offset, METRICS_BYTES):
            return "a new line of metrics"
    if seen.get("log_offset") is not None:
        new = files.size_of(directory / "log") - asked.integer(seen, "log_offset", 0)
        if new > 0:
            return f"{new} new bytes of its log"
    return None
