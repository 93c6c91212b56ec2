"""A run in a few words: each state with a sign and a word, for a screen without colour as well. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len, set_cell_size

from orchestrator.durations import format_duration
from orchestrator.terminal import one_line
from orchestrator.types.decision import ActKind
from orchestrator.types.failure import RunState

if TYPE_CHECKING:
    from datetime import datetime

    from orchestrator.fleet import NextAct, RunCard
    from orchestrator.types.seen import Gpu

SKEW_TOLD_S = 5.0
_MANY = 10_000


class Sign(NamedTuple):
    """How a state is shown; `rank` sorts those first that a person should look at."""

    glyph: str
    ascii: str
    word: str
    style: str
    rank: int


SIGNS = {
    RunState.DEAD: Sign("\u2717", "x", "dead", "bold red", 0),
    RunState.HUNG: Sign("\u25a0", "#", "hung", "bold red", 1),
    RunState.CONTAINER_STOPPED: Sign("\u25bd", "v", "CT stopped", "yellow", 3),
    RunState.CONTAINER_FROZEN: Sign("\u25a1", "=", "CT frozen", "yellow", 4),
    RunState.UNSUPERVISED: Sign("\u25d0", "u", "unsupervised", "yellow", 6),
    RunState.ENDING: Sign("\u25bf", ".", "ending", "yellow", 7),
    RunState.NEW: Sign("\u25cb", "o", "new", "cyan", 8),
    RunState.HEALTHY: Sign("\u25cf", "*", "healthy", "green", 9),
    RunState.STOPPED: Sign("\u25aa", "-", "stopped", "", 10),
    RunState.FINISHED: Sign("\u2713", "+", "finished", "green", 11),
    RunState.BLIND: Sign("?", "?", "blind", "yellow", 2),
}
STALE = Sign("~", "~", "stale", "yellow", 5)


def sign_of(card: RunCard, now: datetime) -> Sign:
    """Return how it is shown now: what is not seen is not shown as what it was."""
    if card.has_ended:
        return SIGNS[card.state]
    if card.blind is not None and card.state not in (RunState.CONTAINER_STOPPED, RunState.CONTAINER_FROZEN):
        return SIGNS[RunState.BLIND] if card.looked_at is not None or _is_lost(card) else SIGNS[RunState.NEW]
    return STALE if card.is_stale(now) and card.blind is None else SIGNS[card.state]


def _is_lost(card: RunCard) -> bool:
    """Whether a look was tried and failed; before the first one every run is unseen."""
    return card.blind != "not looked yet"


def age_text(seconds: float | None) -> str:
    """Return an age in at most four letters: 3s, 12m, 5h, 2d."""
    if seconds is None:
        return "-"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def rate_text(tokens_per_s: float | None) -> str:
    """Return tokens a second, short: 950, 12.3k, 1.25M."""
    if tokens_per_s is None:
        return "-"
    if tokens_per_s >= 1e6:
        return f"{tokens_per_s / 1e6:.2f}M"
    return f"{tokens_per_s / 1e3:.1f}k" if tokens_per_s >= 1e3 else f"{tokens_per_s:.0f}"


def step_text(card: RunCard) -> str:
    """Return `1234/9000`, large numbers short."""
    if card.step is None:
        return "-"
    return f"{_count(card.step)}/{_count(card.total_steps)}" if card.total_steps else _count(card.step)


def _count(number: int) -> str:
    if number >= 1_000_000:
        return f"{number / 1e6:.2f}M"
    return f"{number / 1e3:.1f}k" if number >= _MANY else str(number)


def progress_text(card: RunCard, width: int, *, utf8: bool) -> str:
    """Return a bar with the share done; empty if it is not known."""
    if card.step is None or not card.total_steps:
        return ""
    share = min(1.0, max(0.0, card.step / card.total_steps))
    return f"{bar(share, width, utf8=utf8)} {share:.0%}"


def bar(share: float, width: int, *, utf8: bool) -> str:
    """Return a bar of `width` letters."""
    full = round(min(1.0, max(0.0, share)) * width)
    on, off = ("\u2588", "\u2591") if utf8 else ("#", ".")
    return on * full + off * (width - full)


def next_text(act: NextAct | None, now: datetime, *, acts: bool) -> str:
    """Return what the playbook has decided; empty if nothing."""
    if act is None:
        return ""
    if act.kind in (ActKind.CALL, ActKind.GIVE_UP):
        head = "a person is needed" if act.kind is ActKind.CALL else "gave up"
        return f"{head}: {act.reason}"
    words = act.kind.value.replace("_", " ")
    if act.due_at is not None and (wait_s := (act.due_at - now).total_seconds()) > 0:
        words += f" in {format_duration(wait_s)}"
    if act.attempts_left is not None:
        words += f", {act.attempts_left} left"
    if act.changes:
        words += ", with " + ", ".join(f"{key}={value}" for key, value in act.changes)
    head = "next" if acts else "an acting watch would"
    return f"{head}: {words}. {act.reason}"


def skew_text(clock_skew_s: float) -> str:
    """Return how far the container's clock is off; empty if that is nothing to speak of."""
    if abs(clock_skew_s) < SKEW_TOLD_S:
        return ""
    return f"its clock is {format_duration(abs(clock_skew_s))} {'ahead' if clock_skew_s > 0 else 'behind'}"


def squeezed(text: str, width: int, *, utf8: bool = True) -> str:
    """Return one harmless line of exactly `width` cells; of a longer one the middle is left out."""
    text = one_line(text, 400)
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    dots = "\u2026" if utf8 else "~"
    if width < 6:
        return set_cell_size(text, width)
    end = (width - 1) // 3
    tail = text
    while cell_len(tail) > end:
        tail = tail[1:]
    return set_cell_size(set_cell_size(text, width - 1 - cell_len(tail)) + dots + tail, width)


def gpu_cells(gpu: Gpu, *, utf8: bool, width: int) -> list[str]:
    """Return memory, utilization, power, temperature and holders, each short; what is not known is `-`."""
    long = 10 if width >= 88 else 6 if width >= 70 else 0
    memory, load = "memory -", "util   -"
    if gpu.memory_used_bytes is not None and gpu.memory_total_bytes:
        used, total = gpu.memory_used_bytes / 2**30, gpu.memory_total_bytes / 2**30
        memory = f"{bar(used / total, long or 5, utf8=utf8)} {used:5.1f}/{total:.0f} GiB"
    if gpu.utilization_pct is not None:
        load = f"{gpu.utilization_pct:3.0f}%"
        load = f"{bar(gpu.utilization_pct / 100, long, utf8=utf8)} {load}" if long else f"util {load}"
    power = f"{gpu.power_w:3.0f} W" if gpu.power_w is not None else "  - W"
    heat = f"{gpu.temperature_c:2.0f} C" if gpu.temperature_c is not None else " - C"
    pids = ",".join(map(str, gpu.pids))
    return [memory, load, power, heat, f"pid {pids}" if pids else "no process"]
