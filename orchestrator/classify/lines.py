"""What the lines of a traceback look like, and those that are none of it. Pure."""

from __future__ import annotations

import builtins
import re

HEADER = "Traceback (most recent call last)"
CHAINS = ("The above exception was the direct cause", "During handling of the above exception")
NOISE = ("Exception ignored in", "--- Logging error ---")
RESTART = "will restart worker group"  # of torchrun, to which the ranks' ends were no end
LOOKS = ("Call stack:", "Stack (most recent call last)")  # a logger shows where it was called: no exception
# A stack that faulthandler prints has no comma after the number: it is a look, not a traceback.
FRAME = re.compile(r'^\s+File "[^"]+", line \d+(?:,|$)')
EXCEPTION = re.compile(r"^((?:[A-Za-z_]\w*\.)*)([A-Za-z_]\w*)(?::(?:\s.*)?)?$")
ALONE = re.compile(
    r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Failed|LimitHit|Exceeded|Refused|Invalid|Corrupt"
    r"|NonFinite|Timeout|OutOfResources|Died)"
    r"(?:: .*|:)?$"
)
_BUILT_IN = frozenset(
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
)
PANEL = "\u2502\u2503|"  # the sides of rich's panels
# What was typed after a shell's prompt is no message.
PROMPT = re.compile(r"^(?:\([\w.+-]+\)[ -]?)*\[?[\w.-]+@[\w.-]+[: ][^#$%]{0,200}[#$%] +\S")
NO_EXCEPTION = {"INFO", "WARNING", "ERROR", "DEBUG", "NOTE", "SOLUTION", "Epoch", "Step"}
LOG_LINE = re.compile(r"^(?:[EWIF]\d{3,4} |\[?\d{4}-\d\d-\d\d|\[[EWIF]\d* |[\w.-]+:\d+:\d+ \[)")


def is_bare_exception(line: str) -> bool:
    """Whether the line is an exception's name and nothing else, as one without a message is printed."""
    return line in _BUILT_IN or ALONE.match(line) is not None


def ends_message(line: str) -> bool:
    """Whether the line cannot go on with an exception's message: a logger's, or what is typed at a shell."""
    return LOG_LINE.match(line) is not None or PROMPT.match(line) is not None
