"""Which samples are kept, so that a week of them stays small. Pure."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.wire import finite_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

K = TypeVar("K")

MAX_METRICS = 2_000
MAX_GPU_SAMPLES = 5_000
KINDS = ("train", "eval")
NUMBERS = ("loss", "tokens_per_s", "step_s", "lr", "grad_norm", "acceptance_length")


def thin(steps: Sequence[int], limit: int = MAX_METRICS) -> tuple[list[int], int]:
    """Drop every second step until at most `limit` are left.

    `steps` ascends and has no doubles. Returns what is kept and the distance between the kept in steps: a
    later step nearer than that to the last one kept is not kept either. The distance is 0 while nothing was
    dropped. Distances, not multiples, because a trainer may log steps 1, 11, 21 ...
    """
    kept, is_whole = list(steps), True
    while len(kept) > limit:
        kept, is_whole = kept[::2], False
    if is_whole or len(kept) < 2:
        return kept, 0
    return kept, max(1, (kept[-1] - kept[0]) // (len(kept) - 1))


def admit(steps: Iterable[int], last: int | None, every: int) -> list[int]:
    """Return those of the ascending `steps` that are far enough from the last one kept."""
    kept = []
    for step in steps:
        if every == 0 or last is None or step >= last + every:
            kept.append(step)
            last = step
    return kept


def every_second(keys: Iterable[tuple[int, K]]) -> list[tuple[int, K]]:
    """Return every second of each group, the ones to drop; `keys` are (group, key) in order."""
    seen: dict[int, int] = {}
    dropped = []
    for group, key in keys:
        seen[group] = seen.get(group, 0) + 1
        if seen[group] % 2 == 0:
            dropped.append((group, key))
    return dropped


def parse_metric(line: Mapping[str, Any], now: datetime) -> dict[str, Any] | None:
    """Return a line of metrics.jsonl as columns, None if it is no such line: it comes from the container.

    A number that is missing, not a number or not finite is None; a missing or bad time is `now`.
    """
    step, kind = line.get("step"), line.get("kind", "train")
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 2**63 or kind not in KINDS:
        return None
    columns: dict[str, Any] = {"kind": kind, "step": step, "at": _time(line.get("at"), now)}
    columns.update({name: finite_number(line.get(name)) for name in NUMBERS})
    return columns


def _time(value: object, now: datetime) -> datetime:
    if not isinstance(value, str):
        return now
    try:
        return datetime.strptime(value, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
    except ValueError:
        return now
