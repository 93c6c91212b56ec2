"""One turn: take in what the streams brought, diagnose, decide, and carry out the acts that are due."""

from orchestrator.watch.events import Level, Sink, WatchEvent
from orchestrator.watch.loop import Watched, Watcher

__all__ = ["Level", "Sink", "WatchEvent", "Watched", "Watcher"]
