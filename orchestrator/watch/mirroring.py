"""What a watch's mirror of the logs has to tell, told as events of the runs that it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.watch.events import Level, Sink, WatchEvent

if TYPE_CHECKING:
    from orchestrator.clock import Clock
    from orchestrator.mirror import Keeper


def tell_mirror(mirror: Keeper, sink: Sink, clock: Clock) -> None:
    """Tell the news, each once; some are of runs that this watch does not watch."""
    for news in mirror.news():
        sink.emit(
            WatchEvent(
                kind="mirror",
                at=clock.now(),
                run=news.key.name if news.key is not None else "-",
                target=news.key.target if news.key is not None else "-",
                attempt=news.attempt,
                text=news.text,
                level=Level.WARNING if news.is_bad else Level.INFO,
                detail=news.detail,
            )
        )
