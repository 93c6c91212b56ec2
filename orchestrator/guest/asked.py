"""What a request says, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.guest.refusal import Refusal

if TYPE_CHECKING:
    from orchestrator import wire

LARGEST = 1 << 62


def integer(request: wire.Message, key: str, default: int, *, low: int = 0) -> int:
    """Return a whole number of at least `low`, or `default` for null.

    Raises:
        Refusal: It is something else.
    """
    value = request.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= LARGEST:
        raise Refusal("bad_request", f"{key}: {value!r} is no whole number of at least {low}")
    return value


def seconds(request: wire.Message, key: str, default: float, *, low: float, high: float) -> float:
    """Return a number of seconds from `low` to `high`, or `default` for null.

    Raises:
        Refusal: It is something else.
    """
    value = request.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise Refusal("bad_request", f"{key}: {value!r} is no number of seconds from {low:g} to {high:g}")
    return float(value)


def is_text(value: object) -> bool:
    """Whether the operating system can take `value` as an argument or a path."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True
