"""How much memory an object and all that it refers to takes."""

from __future__ import annotations

import enum
import re
import sys
from types import FunctionType, ModuleType
from typing import Any

# Shared by all: they are not the object's own.
_SHARED = (type, enum.Enum, FunctionType, ModuleType, re.Pattern)


def deep_bytes(thing: object) -> int:
    """Return the bytes of `thing` and of what it alone or with others refers to, each counted once."""
    seen: set[int] = set()
    waiting: list[Any] = [thing]
    total = 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, _SHARED):
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        if isinstance(one, dict):
            waiting.extend((*one.keys(), *one.values()))
        elif isinstance(one, (list, tuple, set, frozenset)) or hasattr(one, "maxlen"):
            waiting.extend(one)
        elif hasattr(one, "__dict__"):
            waiting.append(vars(one))
    return total
