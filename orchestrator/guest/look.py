"""`look`: what `watch` says of one run, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.guest import asked, disk, files, gpu, paths, processes, session, watchers
from orchestrator.guest.runfeed import RunFeed

if TYPE_CHECKING:
    from orchestrator import wire
    from orchestrator.guest.link import Link

LOG_BYTES = 64 << 10


def run(verb: str, request: wire.Message, link: Link) -> None:
    """Answer the lines of `watch` for one run, `gpu` if asked for, then `end`."""
    del verb
    place = paths.run_dir(request)
    num_bytes = asked.integer(request, "log_bytes", LOG_BYTES)
    newest = place.attempts()[-1:]
    size = files.size_of(place.attempt(newest[0]) / "log") if newest else 0
    metrics = files.size_of(place.attempt(newest[0]) / "metrics.jsonl") if newest else 0
    feed = RunFeed(place, is_final=True)
    feed.follow(newest[0] if newest else None, max(0, size - num_bytes), metrics)
    tags = session.tags()
    while True:
        for kind, fields in feed.turn(processes.scan(), tags):
            link.send(kind, fields)
        if feed.wants_scan:
            continue
        if not feed.has_more or all(each.log_offset >= size for each in feed.feeds[:1]):
            break
    logs = {place.name: place.attempt(newest[0]) / "log"} if newest else {}
    reading = disk.fields(place.state, logs)
    if reading is not None:
        link.send("disk", reading)
    if request.get("gpus"):
        link.send("gpu", gpu.once())
    link.send("watchers", {"watchers": watchers.present(place.state)})
    link.send("end", {"run": place.name, "attempt": newest[0] if newest else None, "size": size})
