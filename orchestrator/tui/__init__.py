"""The live view of a terminal: runs, curves, GPUs, log and story, with keys. Reads a board and the record.

It never reaches a container itself: what does is asked of others, in threads, so that a blind host holds up
no key.
"""

from orchestrator.tui.app import WatchApp
from orchestrator.tui.desk import Desk, Ending

__all__ = ["Desk", "Ending", "WatchApp"]
