"""From the record to a report's parts; nothing is looked at but the record and the playbook."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from orchestrator import __version__
from orchestrator.errors import NotFound
from orchestrator.plot import make_curves
from orchestrator.report.attempts import attempt_part, end_said, is_death
from orchestrator.report.parts import Report, Table
from orchestrator.report.words import between, line_said, moment, said
from orchestrator.types.failure import RunState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from orchestrator.playbook import Playbook
    from orchestrator.record import AttemptRow, DiagnosisRow, EventRow, GpuRow, MetricRow, Record, RunRow

MAX_EVENTS = 100_000
_GOOD = frozenset({RunState.HEALTHY, RunState.FINISHED})
_BAD = frozenset({RunState.DEAD, RunState.HUNG})
_PACKAGES = ("transformers", "triton")


class Known(NamedTuple):
    """All that the record says of a run, read once."""

    row: RunRow
    attempts: list[AttemptRow]
    diagnoses: list[DiagnosisRow]
    events: list[EventRow]
    metrics: list[MetricRow]
    gpus: list[GpuRow]


def collect(
    record: Record, row: RunRow, playbook: Playbook, now: datetime, attempt: int | None = None
) -> Report:
    """Return the report of a run, or of one attempt of it.

    Raises:
        NotFound: There is no such attempt.
        RecordError: The record cannot be read.
    """
    known = Known(
        row,
        record.attempts(row.id),
        record.diagnoses(row.id),
        record.events(row.id, limit=MAX_EVENTS),
        record.metrics(row.id),
        record.gpus(row.id),
    )
    chosen = [each for each in known.attempts if attempt in (None, each.n)]
    if attempt is not None and not chosen:
        made = ", ".join(str(each.n) for each in known.attempts) or "none"
        raise NotFound(f"{row.name}: there is no attempt {attempt} on record", hint=f"attempts: {made}")
    curves = make_curves(
        row.name, chosen, [m for m in known.metrics if attempt in (None, m.attempt)], known.gpus
    )
    only = f"; this page tells of attempt {attempt} only" if attempt is not None else ""
    return Report(
        name=line_said(row.name),
        summary=_summary(known) + only,
        level="good" if row.state in _GOOD else "bad" if row.state in _BAD else "plain",
        written_at=moment(now),
        facts=_facts(known),
        overview=_overview(known.attempts),
        attempts=tuple(attempt_part(known, each, playbook) for each in chosen),
        curves=curves,
        curves_note="" if curves else "No step was logged, so there is nothing to draw.",
        versions=_versions(chosen, playbook),
    )


def _summary(known: Known) -> str:
    attempts, deaths = known.attempts, [each for each in known.attempts if is_death(each)]
    if not attempts:
        return f"{known.row.state.value}; no attempt is on record"
    counts: dict[str, int] = {}
    for each in deaths:
        counts[end_said(each)] = counts.get(end_said(each), 0) + 1
    kinds = ", ".join(f"{name} x{n}" if n > 1 else name for name, n in counts.items())
    num, died = len(attempts), len(deaths)
    text = f"{num} attempt{'s' if num > 1 else ''}, "
    text += f"{died} death{'s' if died > 1 else ''} ({kinds})" if died else "no death"
    steps = [each.last_step for each in attempts if each.last_step is not None]
    steps += [metric.step for metric in known.metrics]
    furthest = f", step {max(steps)} reached" if steps else ""
    return f"{text}{furthest}; the newest state on record is {known.row.state.value}"


def _facts(known: Known) -> tuple[tuple[str, str], ...]:
    row, attempts = known.row, known.attempts
    began = next((each.started_at for each in attempts if each.started_at), None)
    told = {
        "at": line_said(row.target_key),
        "state": row.state.value,
        "began": moment(began or row.created_at),
        "last event": moment(known.events[-1].at) if known.events else "",
        "configuration": line_said(row.spec.get("config") or ""),
    }
    return tuple((key, value) for key, value in told.items() if value)


def _overview(attempts: Sequence[AttemptRow]) -> Table:
    """Return a row an attempt, without the columns that say nothing."""
    heads = ("attempt", "end", "steps", "lasted", "began", "by", "changed")
    rows = [
        (
            str(each.n),
            end_said(each),
            _steps(each),
            between(each.started_at, each.ended_at),
            moment(each.started_at),
            line_said(each.by or ""),
            line_said(", ".join(f"{key}={value}" for key, value in each.changes.items())),
        )
        for each in attempts
    ]
    used = [n for n in range(len(heads)) if any(row[n] for row in rows)]
    return Table(
        caption="The attempts",
        heads=tuple(heads[n] for n in used),
        rows=tuple(tuple(row[n] for n in used) for row in rows),
    )


def _steps(attempt: AttemptRow) -> str:
    if attempt.last_step is None:
        return ""
    return f"{attempt.first_step or 0} to {attempt.last_step}"


def _versions(attempts: Sequence[AttemptRow], playbook: Playbook) -> tuple[tuple[str, str], ...]:
    """Return what it ran on, by the newest attempt whose environment.json was seen."""
    newest = next((each for each in reversed(attempts) if each.environment), None)
    told = [("dflashctl", __version__), ("playbook", line_said(playbook.source.rsplit("/", 1)[-1]))]
    if newest is None or newest.environment is None:
        return (*told, ("trainer", "no environment.json is on record"))
    seen: Mapping[str, object] = newest.environment
    told.append(("of attempt", str(newest.n)))
    told += [
        (key, said(seen[key], 200))
        for key in ("torch", "cuda", "driver", "python", "platform")
        if seen.get(key)
    ]
    packages = seen.get("packages")
    if isinstance(packages, dict):
        told += [(name, said(packages[name], 100)) for name in _PACKAGES if packages.get(name)]
    gpus = seen.get("gpus")
    names = (
        [str(each.get("name")) for each in gpus if isinstance(each, dict)] if isinstance(gpus, list) else []
    )
    if names:
        told.append(("GPUs", line_said(", ".join(f"{names.count(n)} x {n}" for n in dict.fromkeys(names)))))
    return tuple(told)
