"""What the record knows of the chosen run, read off the drawing thread: curves and the story in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from orchestrator.plot import make_curves
from orchestrator.terminal import one_line, plain
from orchestrator.types.failure import RunState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from orchestrator.clock import Clock
    from orchestrator.fleet import Told
    from orchestrator.plot import Curves
    from orchestrator.record import DiagnosisRow, EventRow, Record, RunRow
    from orchestrator.types.failure import Evidence
    from orchestrator.watch.events import WatchEvent

MAX_EVENTS = 300
MAX_EVIDENCE = 4
# What the watch tells and the record has no row of.
ONLY_TOLD = frozenset(
    {"blind", "prediction", "decision", "gate", "guard", "pattern", "disk", "session", "fault", "host"}
)
_RECORDED = {
    "started": "cyan",
    "ended": "",
    "transition": "",
    "diagnosis": "",
    "action": "bold",
    "outcome": "",
}
_BAD = frozenset({RunState.DEAD, RunState.HUNG})


@dataclass(frozen=True)
class Moment:
    """One thing that happened, with the proof of it."""

    at: datetime
    attempt: int | None
    kind: str
    text: str
    style: str = ""
    proof: tuple[str, ...] = ()


@dataclass(frozen=True)
class History:
    """A run's past. `took_s`: how long reading it took."""

    run_id: int
    curves: Curves | None
    moments: tuple[Moment, ...]
    took_s: float = 0.0


def read_history(record: Record, row: RunRow, clock: Clock) -> History:
    """Return a run's past.

    Raises:
        RecordError: The record cannot be read.
    """
    began_at = clock.monotonic()
    attempts = record.attempts(row.id)
    curves = make_curves(row.name, attempts, record.metrics(row.id), ())
    diagnoses = {each.id: each for each in record.diagnoses(row.id)}
    moments = moments_of(record.events(row.id, limit=MAX_EVENTS), diagnoses)
    return History(row.id, curves, tuple(moments), clock.monotonic() - began_at)


def moments_of(events: Sequence[EventRow], diagnoses: dict[int, DiagnosisRow]) -> list[Moment]:
    """Return what happened; a change of state that only repeats a diagnosis is left out."""
    said = {(each.attempt, each.summary) for each in diagnoses.values()}
    moments = []
    for event in events:
        if event.kind == "transition" and (event.attempt, event.detail.get("summary")) in said:
            continue
        found = diagnoses.get(event.detail.get("id", -1)) if event.kind == "diagnosis" else None
        style = _RECORDED.get(event.kind, "")
        if found is not None:
            style = "bold red" if found.state in _BAD else "green" if found.state is RunState.FINISHED else ""
        proof = _proof(found) if found is not None else ()
        moments.append(Moment(event.at, event.attempt, event.kind, event.text, style, proof))
    return moments


def with_told(moments: Sequence[Moment], told: Sequence[Told]) -> list[Moment]:
    """Return them with what the watch told and the record has not, in the order of time."""
    styles = {"bad": "bold red", "warning": "yellow", "good": "green"}
    written = " ".join(moment.text for moment in moments if moment.kind == "action")
    more = [
        Moment(each.event.at, each.event.attempt, each.event.kind, each.event.text,
               styles.get(each.event.level.value, ""))
        for each in told
        if each.event.kind in ONLY_TOLD and not _is_written(each.event, written)
    ]  # fmt: skip
    return sorted([*moments, *more], key=lambda moment: moment.at)


def _is_written(event: WatchEvent, written: str) -> bool:
    """Whether a decision is on record as the act that came of it."""
    return event.kind == "decision" and event.text.partition(": ")[2] in written


def moment_lines(moments: Sequence[Moment]) -> list[Text]:
    """Return the lines that tell them."""
    lines: list[Text] = []
    day = moments[-1].at.astimezone().date() if moments else None
    for moment in moments:
        at = moment.at.astimezone()
        if at.date() != day or (not lines and at.date() != moments[-1].at.astimezone().date()):
            lines.append(Text(f"--- {at.date():%Y-%m-%d} ---", style="dim"))
            day = at.date()
        clock = at.strftime("%H:%M:%S")
        attempt = f"[{moment.attempt}] " if moment.attempt is not None else ""
        says_kind = moment.kind in ("started", "ended") or moment.text.startswith(moment.kind)
        said = one_line(moment.text if says_kind else f"{moment.kind}: {moment.text}", 600)
        lines.append(Text.assemble((f"{clock} ", "dim"), (attempt + said, moment.style)))
        lines += [Text(f"         {proof}", style="dim") for proof in moment.proof]
    return lines


def _proof(found: DiagnosisRow) -> tuple[str, ...]:
    parts = [(each.role.value, each) for each in found.evidence[:MAX_EVIDENCE]]
    parts += [("cascade", each) for each in found.cascades[:1]]
    return tuple(dict.fromkeys(f"{role} {_told(each)}" for role, each in parts))


def _told(item: Evidence) -> str:
    where = item.source + (f" byte {item.offset}" if item.offset is not None else "")
    rank = f" rank {item.rank}" if item.rank is not None else ""
    return f"({where}{rank}): {one_line(plain(item.text), 400)}"
