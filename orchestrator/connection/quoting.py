"""An argv as the one string that ssh sends to a host's login shell. Pure.

The login shell may be fish, csh or zsh. So words travel plainly only if no shell sees anything in them;
everything else
goes as base64 inside a string that all of those shells read alike, and `sh` takes it from there.
"""

from __future__ import annotations

import base64
import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# "=" at the start is a command's path in zsh, "%" a job in csh, "~" a home everywhere.
_PLAIN = re.compile(r"[A-Za-z0-9_./:,+-][A-Za-z0-9_./:,+@%=-]*")
_PROGRAM = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./+-]*")


def command_line(argv: Sequence[str]) -> str:
    """Return the command string for `argv`; every byte of every word arrives as it is."""
    if _PROGRAM.fullmatch(argv[0]) and all(_PLAIN.fullmatch(word) for word in argv[1:]):
        return " ".join(argv)
    script = "exec " + shlex.join(argv)
    packed = base64.b64encode(script.encode("utf-8", "surrogateescape")).decode("ascii")
    return f"""sh -c 'eval "$(echo {packed} | base64 -d)"'"""
