"""A copy of every attempt's log on this machine: kept by a watch, compressed by attempt, within a quota.

keeper    the watch's thread that writes it, and what is told of it
runwriter one run: its lock, and which attempts are written
writing   one attempt: bytes at their offsets, each once
reading   any range of a log, what is missing of it, and from when it is
news      what is told of it
quota     what goes first when there is too much
frames    compressed pieces that say which bytes they hold
journal   the newest bytes, not compressed yet
layout    the folders and the locks
notes     what is written down beside the bytes
"""

from orchestrator.mirror.keeper import Keeper
from orchestrator.mirror.layout import RunKey
from orchestrator.mirror.news import News
from orchestrator.mirror.notes import Removed
from orchestrator.mirror.quota import Limits, Removal, remove, remove_run, size_of
from orchestrator.mirror.reading import AttemptLog, Hole, Piece, RunMirror

__all__ = [
    "AttemptLog",
    "Hole",
    "Keeper",
    "Limits",
    "News",
    "Piece",
    "Removal",
    "Removed",
    "RunKey",
    "RunMirror",
    "remove",
    "remove_run",
    "size_of",
]
