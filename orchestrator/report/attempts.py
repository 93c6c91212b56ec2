"""One attempt's part of a report."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from orchestrator.classify.titles import title
from orchestrator.compare import Attempt, choose, compare
from orchestrator.report.parts import AttemptPart, Entry, Table
from orchestrator.report.words import between, line_said, moment, proofs, rule_said, said, value_said
from orchestrator.types.failure import FailureClass, RunState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from orchestrator.playbook import Playbook
    from orchestrator.record import AttemptRow, DiagnosisRow, EventRow, GpuRow
    from orchestrator.report.collect import Known

MAX_CHANGES = 60
GIB = float(2**30)
_NO_DEATH = frozenset({FailureClass.COMPLETED, FailureClass.HEALTHY})
_ENDS = frozenset({RunState.DEAD, RunState.HUNG})
_LEVELS = {
    RunState.HEALTHY.value: "good",
    RunState.FINISHED.value: "good",
    RunState.DEAD.value: "bad",
    RunState.HUNG.value: "bad",
    RunState.BLIND.value: "warning",
}


def is_death(attempt: AttemptRow) -> bool:
    """Whether the attempt ended, and not with success."""
    return attempt.has_ended and attempt.failure is not None and attempt.failure not in _NO_DEATH


def end_said(attempt: AttemptRow) -> str:
    """Return how the attempt ended, in a word."""
    if not attempt.has_ended:
        return "no end on record"
    return attempt.failure.value if attempt.failure is not None else "ended"


def attempt_part(known: Known, attempt: AttemptRow, playbook: Playbook) -> AttemptPart:
    """Return the attempt's part of the story."""
    died = is_death(attempt)
    changes, note = _differences(known, attempt)
    caption, when = ("The GPUs when it ended", attempt.ended_at) if died else _hang(known, attempt)
    gpus = _gpus(caption, [each for each in known.gpus if each.attempt == attempt.n], when)
    return AttemptPart(
        number=attempt.n,
        end=end_said(attempt),
        level="bad" if died else "good" if attempt.failure is FailureClass.COMPLETED else "plain",
        words=title(attempt.failure) if died and attempt.failure else "",
        facts=_facts(attempt),
        entries=_entries(known, attempt.n, playbook),
        tables=tuple(table for table in (gpus, changes) if table is not None),
        note=note,
    )


def _hang(known: Known, attempt: AttemptRow) -> tuple[str, datetime | None]:
    """Return when an attempt that has no end yet was last seen to hang, None if it was not."""
    hangs = [d.at for d in known.diagnoses if d.attempt == attempt.n and d.state is RunState.HUNG]
    return "The GPUs when it hung", hangs[-1] if hangs and not attempt.has_ended else None


def _facts(attempt: AttemptRow) -> tuple[tuple[str, str], ...]:
    how = f"signal {attempt.exit_signal}" if attempt.exit_signal is not None else ""
    if not how and attempt.exit_code is not None:
        how = f"exit code {attempt.exit_code}"
    told = {
        "started by": line_said(attempt.by or ""),
        "lasted": between(attempt.started_at, attempt.ended_at),
        "resumed from step": str(attempt.first_step or ""),
        "last step": str(attempt.last_step) if attempt.last_step is not None else "",
        "newest checkpoint": f"step {attempt.checkpoint_step}" if attempt.checkpoint_step is not None else "",
        "its process ended with": how,
        "fingerprint": line_said(attempt.fingerprint or ""),
    }
    return tuple((key, value) for key, value in told.items() if value)


def _entries(known: Known, number: int, playbook: Playbook) -> tuple[Entry, ...]:
    diagnoses = {each.id: each for each in known.diagnoses}
    outcomes = {e.detail.get("id"): e for e in known.events if e.kind == "outcome"}
    told = {each.summary for each in known.diagnoses if each.attempt == number}
    entries = []
    for event in known.events:
        if event.attempt != number or event.kind == "outcome" or _is_plain_start(event):
            continue
        diagnosis = diagnoses.get(event.detail.get("id", 0)) if event.kind == "diagnosis" else None
        if diagnosis is not None:
            entries.append(_diagnosis(diagnosis, playbook))
        elif event.kind == "action":
            entries.append(_act(event, outcomes.get(event.detail.get("id"))))
        elif event.kind == "transition":
            entries.append(_change(event, told))
        else:
            entries.append(Entry(at=moment(event.at), kind=event.kind, text=said(event.text)))
    return tuple(entries)


def _is_plain_start(event: EventRow) -> bool:
    """Whether it says no more than that the attempt started."""
    return event.kind == "transition" and event.detail.get("to") == RunState.NEW.value


def _change(event: EventRow, told: set[str]) -> Entry:
    """Return a change of state, without the words of the diagnosis that it is told with."""
    to, summary = str(event.detail.get("to")), event.detail.get("summary")
    text = f"{event.detail.get('from') or 'new'} -> {to}" if summary in told else event.text
    return Entry(at=moment(event.at), kind="state", text=said(text), level=_LEVELS.get(to, "plain"))


def _diagnosis(row: DiagnosisRow, playbook: Playbook) -> Entry:
    notes = []
    if row.failure is not None and row.state in _ENDS:
        notes.append(("the playbook's rule", rule_said(playbook.rule_of(row.diagnosis))))
    name = row.failure.value if row.failure else row.state.value
    sure = f" (confidence {row.confidence:.0%})" if row.confidence < 1 else ""
    return Entry(
        at=moment(row.at),
        kind="diagnosis",
        text=f"{name}: {said(row.summary)}{sure}",
        level=_LEVELS.get(row.state.value, "plain"),
        notes=tuple(notes),
        proofs=proofs(row.evidence),
        folded=proofs((*row.warnings, *row.cascades)),
    )


def _act(event: EventRow, outcome: EventRow | None) -> Entry:
    """Return a decision with how it went; an intent without an outcome says so."""
    notes = [("told by", said(event.detail["intent"]["diagnosis"]))] if _has_diagnosis(event) else []
    level = "plain"
    if outcome is None:
        notes.append(("outcome", "none is on record"))
    else:
        error = outcome.detail.get("error")
        level = "warning" if error else level
        text = said(outcome.detail.get("outcome") or "") + (f": {said(error)}" if error else "")
        notes.append((f"outcome after {between(event.at, outcome.at)}", text))
    is_look = event.detail.get("action") == "stacks"
    kind, text = ("stacks", event.text.removeprefix("stacks: ")) if is_look else ("decision", event.text)
    return Entry(at=moment(event.at), kind=kind, text=said(text), level=level, notes=tuple(notes))


def _has_diagnosis(event: EventRow) -> bool:
    intent = event.detail.get("intent")
    return isinstance(intent, dict) and isinstance(intent.get("diagnosis"), str)


def _gpus(caption: str, readings: Sequence[GpuRow], end: datetime | None) -> Table | None:
    """Return the last reading of each GPU before `end`, and the most memory that it held in the attempt."""
    if end is None or not readings:
        return None
    rows = []
    for index in sorted({each.index for each in readings}):
        mine = [each for each in readings if each.index == index]
        last = next((each for each in reversed(mine) if each.at <= end), mine[0])
        highest = max((each.memory_used_bytes or 0 for each in mine), default=0)
        rows.append(
            (
                f"GPU {index}",
                _number(last.memory_used_bytes, GIB, ".1f"),
                _number(highest or None, GIB, ".1f"),
                _number(last.utilization_pct, 1, ".0f"),
                _number(last.power_w, 1, ".0f"),
                _number(last.temperature_c, 1, ".0f"),
                _before(last.at, end),
            )
        )
    heads = (
        "GPU",
        "memory (GiB)",
        "highest (GiB)",
        "utilization (%)",
        "power (W)",
        "temperature (C)",
        "read",
    )
    return Table(caption=caption, heads=heads, rows=tuple(rows))


def _number(value: float | None, unit: float, form: str) -> str:
    return format(value / unit, form) if value is not None else "not read"


def _before(at: datetime, end: datetime) -> str:
    if abs(end - at) < timedelta(seconds=1):
        return "at that time"
    return f"{between(at, end)} before" if at <= end else f"{between(end, at)} after"


def _differences(known: Known, attempt: AttemptRow) -> tuple[Table | None, str]:
    """Return what differs from the last attempt before it that made progress, as `diff` tells it."""
    made = {
        each.n: Attempt(
            run=known.row.name,
            number=each.n,
            environment=each.environment,
            spec=each.spec,
            made_progress=each.exit_code == 0 or (each.last_step or 0) > (each.first_step or 0),
        )
        for each in known.attempts
    }
    pair = choose(made, attempt.n)
    if pair is None:
        return None, ""
    if any(each.environment is None and each.spec is None for each in pair):
        return None, f"What it ran on cannot be compared with attempt {pair[0].number}: one is not on record."
    found = compare(*pair)
    unknown = "; ".join(line_said(note) for note in found.notes)
    if not found.changes:
        same = f"Nothing differs from attempt {pair[0].number}"
        return None, f"{same}, as far as that can be told: {unknown}." if unknown else f"{same}."
    rows = tuple(
        (each.key, each.group, value_said(each.key, each.old), value_said(each.key, each.new))
        for each in found.changes[:MAX_CHANGES]
    )
    more = len(found.changes) - len(rows)
    note = f"{more} more differences: `dflashctl diff` tells them." if more else ""
    return Table(
        caption=f"What changed since attempt {pair[0].number}",
        heads=("key", "group", f"attempt {pair[0].number}", f"attempt {attempt.n}"),
        rows=tuple((line_said(key), group, old, new) for key, group, old, new in rows),
        note=note,
    ), f"{unknown}." if unknown else ""
