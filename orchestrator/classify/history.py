"""What only several steps or attempts show: slower than before, a slow rank, the same step again. Pure.

Nothing here is a death, and nothing here is decided: each pattern is told once with its proof.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from orchestrator.durations import format_duration
from orchestrator.ledger import Ledger, poison_step
from orchestrator.types.failure import Evidence, FailureClass, Role
from orchestrator.types.seen import Heartbeat, Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from orchestrator.types.decision import PastAttempt

# The first logged steps after a start fill caches and allocators.
FIRST_ROWS = 5
RECENT_ROWS = 20
BASE_ROWS = 40
SLOWER = 1.5
AGAIN_WELL = 1.2  # a run that was slow is told again only after it came under this
SUSTAINED = 0.8  # of the recent rows
USUAL = 0.25  # of the rows before: what happened so often is the run's own way
FAST_AGAIN = 3  # rows in a row
STRAGGLES = 1.3  # times the median of the other ranks


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """One pattern; `summary` is a sentence for a person."""

    failure: FailureClass
    summary: str
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True)
class StepTime:
    """A logged step: seconds a step without evaluation and checkpoints; `rank_s` of each rank, if told."""

    attempt: int
    step: int
    step_s: float
    rank_s: Mapping[int, float] | None = None


def slowdown(rows: Sequence[StepTime], attempt: int) -> float | None:
    """Return how many times as long the attempt's recent steps take as the run's earlier ones.

    None while there are too few of either to say. `rows` are of attempts that do the same work on the same
    machine, oldest first.
    """
    split = _split(rows, attempt)
    if split is None:
        return None
    before, recent = split
    base = median(before)
    return median(recent) / base if base > 0 else None


def throughput_regression(rows: Sequence[StepTime], attempt: int) -> Pattern | None:
    """Return that steps have become slower and stayed so, against this run's own earlier steps.

    A few slow steps are none, and neither is what the run's own spread covers.
    """
    split = _split(rows, attempt)
    if split is None:
        return None
    before, recent = split
    base, now = median(before), median(recent)
    if now < SLOWER * base:
        return None
    ratio, middle = now / base, _middle(base)
    if _share_over(before, middle) > USUAL or _share_over(recent, middle) < SUSTAINED:
        return None
    mine = [row for row in rows if row.attempt == attempt][-RECENT_ROWS:]
    text = (
        f"the last {len(recent)} logged steps ({mine[0].step} to {mine[-1].step}) take {_seconds(now)} each, "
        f"{ratio:.1f} times as long as the {len(before)} before ({_seconds(base)})"
    )
    return _pattern(FailureClass.THROUGHPUT_REGRESSION, f"slower than before: {text}", [text])


def _split(rows: Sequence[StepTime], attempt: int) -> tuple[list[float], list[float]] | None:
    """Return the times before the slow steps at the end began, and the recent ones of `attempt`.

    The first of each attempt are left out. None if there are too few.
    """
    counts: dict[int, int] = {}
    kept: list[StepTime] = []
    for row in rows:
        counts[row.attempt] = counts.get(row.attempt, 0) + 1
        if counts[row.attempt] > FIRST_ROWS and row.step_s > 0 and row.attempt <= attempt:
            kept.append(row)
    recent = [row.step_s for row in kept if row.attempt == attempt][-RECENT_ROWS:]
    earlier = [row.step_s for row in kept[: -len(recent) or None]]
    if len(recent) < RECENT_ROWS or len(earlier) < BASE_ROWS:
        return None
    before = earlier[: _onset(earlier, _middle(median(earlier)))]
    return (before, recent) if len(before) >= BASE_ROWS else (earlier, recent)


def _onset(times: Sequence[float], middle: float) -> int:
    """Return from where on the times at the end are slow: they must not make their own measure."""
    onset, fast = len(times), 0
    for place in range(len(times) - 1, -1, -1):
        fast = 0 if times[place] > middle else fast + 1
        if fast == FAST_AGAIN:
            break
        onset = place if fast == 0 else onset
    return onset


def _middle(base: float) -> float:
    return (1.0 + SLOWER) / 2 * base


def _share_over(times: Sequence[float], limit: float) -> float:
    return sum(1 for each in times if each > limit) / len(times)


def stragglers(rows: Sequence[StepTime]) -> Pattern | None:
    """Return the ranks that are slower than the rest in nearly every recent step; all others wait for them.

    A rank's time is of its own work, without waiting for others; where nobody tells it nothing is said.
    """
    told = [row.rank_s for row in rows if row.rank_s is not None and len(row.rank_s) > 1][-RECENT_ROWS:]
    if len(told) < RECENT_ROWS or any(set(each) != set(told[0]) for each in told):
        return None
    slow = {}
    for rank in told[0]:
        ratios = [_ratio(each, rank) for each in told]
        if sum(1 for ratio in ratios if ratio >= STRAGGLES) >= SUSTAINED * len(ratios):
            slow[rank] = median(ratios)
    # Half of the ranks slower than the other half is two kinds of work, not a straggler.
    if not slow or 2 * len(slow) > len(told[0]) or (len(told[0]) > 2 and 2 * len(slow) == len(told[0])):
        return None
    lines = [
        f"rank {rank}: {_seconds(median(each[rank] for each in told))} of its own work a step, "
        f"{ratio:.1f} times the median of the others"
        for rank, ratio in sorted(slow.items())
    ]
    named = ", ".join(str(rank) for rank in sorted(slow))
    plural = "s" if len(slow) > 1 else ""
    summary = f"rank{plural} {named} slower than the rest in the last {len(told)} logged steps"
    return _pattern(FailureClass.STRAGGLERS, summary, lines)


def _ratio(times: Mapping[int, float], rank: int) -> float:
    others = median(value for other, value in times.items() if other != rank)
    return times[rank] / others if others > 0 else 1.0


def no_progress(ledger: Ledger, last_step: int | None) -> Pattern | None:
    """Return that attempt after attempt trains up to the same step and ends there."""
    found = poison_step(ledger, last_step)
    if found is None:
        return None
    step, attempts = found
    text = f"{len(attempts) + 1} attempts in a row ended at step {step}"
    return _pattern(
        FailureClass.NO_PROGRESS,
        f"{text}: what that step reads or computes ends them",
        [*(_told(each) for each in attempts), f"and this one ended at step {last_step}"],
    )


def crash_loop(ledger: Ledger, now: datetime, deaths: int, window_s: float) -> Pattern | None:
    """Return that it died `deaths` times within the window and no checkpoint advanced meanwhile."""
    count = ledger.num_deaths(now, window_s)
    if count < deaths:
        return None
    text = f"{count} deaths within {format_duration(window_s)}, and no checkpoint advanced"
    return _pattern(
        FailureClass.CRASH_LOOP, f"crash loop: {text}", [_told(each) for each in ledger.chain[-deaths:]]
    )


def resumed_from_zero(
    beat: Heartbeat | None, attempt: int, earlier: int | None, on_disk: int | None
) -> Pattern | None:
    """Return that the attempt trains from step 0 while a checkpoint of an earlier attempt is there.

    `earlier` is the newest checkpoint that was there before the attempt, `on_disk` the newest one now. A
    person who removed the checkpoints wanted it so.
    """
    if beat is None or attempt <= 1 or beat.phase is not Phase.TRAIN or (beat.resumed_from_step or 0) > 0:
        return None
    if not earlier or on_disk is None or on_disk < earlier or beat.step >= earlier:
        return None
    text = f"attempt {attempt} trains at step {beat.step}, though the checkpoint of step {earlier} is there"
    return _pattern(
        FailureClass.RESUMED_FROM_ZERO,
        f"{text}; the steps up to it are trained anew",
        [text, f"its heartbeat says resumed_from_step {beat.resumed_from_step}"],
    )


def _told(attempt: PastAttempt) -> str:
    how = attempt.failure.value if attempt.failure is not None else "ended"
    begun = f" from step {attempt.first_step}" if attempt.first_step is not None else ""
    last = f" at step {attempt.last_step}" if attempt.last_step is not None else ""
    kept = f", newest checkpoint {attempt.checkpoint_step}" if attempt.checkpoint_step is not None else ""
    return f"attempt {attempt.attempt}{begun}: {how}{last}{kept}"


def _pattern(failure: FailureClass, summary: str, lines: Iterable[str]) -> Pattern:
    evidence = tuple(Evidence(source="history", text=line, role=Role.CONFIRMATION) for line in lines)
    return Pattern(failure=failure, summary=summary, evidence=evidence)


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"
