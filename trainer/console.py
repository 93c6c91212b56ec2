"""Lines for the log. The watcher reads them as they come, so each is flushed at once."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """Print one line to stdout."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def warn(line: str) -> None:
    """Print one line to stderr, marked as a warning."""
    sys.stderr.write(f"warning: {line}\n")
    sys.stderr.flush()
