"""Values as JSON has them: texts masked and plain, numbers finite, times as everywhere. Pure."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from orchestrator.clock import timestamp
from orchestrator.masking import Masker
from orchestrator.report.words import line_said, said, value_said

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

_MASKER = Masker()
MAX_DEPTH = 8
MAX_ITEMS = 500

MAX_KEPT = 400  # characters

# The same few texts come again with every change of a card.
_kept_text = lru_cache(maxsize=4096)(said)
_kept_line = lru_cache(maxsize=4096)(line_said)


def text(value: str) -> str:
    """Return the text safe to show: masked, without control sequences, cut if it is long."""
    return _kept_text(value) if len(value) <= MAX_KEPT else said(value)


def line(value: str) -> str:
    """Return the text safe to show on one line."""
    return _kept_line(value) if len(value) <= MAX_KEPT else line_said(value)


def optional(value: str | None) -> str | None:
    """Return the text safe to show, or None."""
    return text(value) if value is not None else None


def moment(at: datetime | None) -> str | None:
    """Return the time, or None."""
    return timestamp(at) if at is not None else None


def finite(value: float | None) -> float | None:
    """Return the number; None for what JSON has no word for."""
    return value if value is not None and math.isfinite(value) else None


def settings(changes: Iterable[tuple[str, Any]]) -> list[dict[str, str]]:
    """Return changed keys with their values, secrets starred out."""
    return [{"key": line(str(key)), "value": value_said(str(key), value)} for key, value in changes]


def detail(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return what came with an event: masked, finite and bounded."""
    return _plain(_MASKER.json(value), 0)


def _plain(value: Any, depth: int) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        return text(value)
    if isinstance(value, float):
        return finite(value)
    if value is None or isinstance(value, (bool, int)):
        return value
    if depth >= MAX_DEPTH:
        return line(str(value))
    if isinstance(value, dict):
        return {line(str(key)): _plain(item, depth + 1) for key, item in list(value.items())[:MAX_ITEMS]}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item, depth + 1) for item in list(value)[:MAX_ITEMS]]
    return line(str(value))


def encoded(body: object) -> bytes:
    """Return plain data as JSON."""
    return to_json(body, inf_nan_mode="null")
