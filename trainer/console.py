"""What a person reads in the log: one line at a time, at once, from one rank unless it is a warning."""

from __future__ import annotations

import sys
from typing import TextIO


class _Console:
    """Of several ranks the leader alone speaks, so that nothing is said eight times."""

    quiet = False
    mark = ""


def quieten(rank: int) -> None:
    """Keep ordinary lines of this process back, and mark its warnings with its rank."""
    _Console.quiet, _Console.mark = True, f"[rank{rank}]: "


def say(line: str) -> None:
    """Print a line to stdout."""
    if not _Console.quiet:
        _write(sys.stdout, line)


def warn(line: str) -> None:
    """Print a warning to stderr."""
    _write(sys.stderr, f"{_Console.mark}warning: {line}")


def _write(stream: TextIO, line: str) -> None:
    # In one piece: several ranks share the log.
    stream.write(line + "\n")
    stream.flush()
