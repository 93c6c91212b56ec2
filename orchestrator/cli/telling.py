"""explain, events: what the record knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.context import (
    SETTINGS,
    age_text,
    find_run,
    load_playbook,
    opened_record,
    playbook_of,
    print_json,
)
from orchestrator.cli.reaching import site_of
from orchestrator.clock import timestamp
from orchestrator.errors import BlindError, GuestRefused, NotFound
from orchestrator.terminal import plain
from orchestrator.types.failure import Role, RunState
from orchestrator.wire import unpack_bytes

if TYPE_CHECKING:
    from orchestrator.playbook import Rule
    from orchestrator.record import DiagnosisRow, EventRow, Record, RunRow

_AROUND_BYTES = 2000
_LIVING = frozenset({RunState.HEALTHY, RunState.UNSUPERVISED, RunState.ENDING, RunState.HUNG})


def register(app: typer.Typer) -> None:
    """Add this file's verbs."""
    for verb in (explain, events):
        app.command(rich_help_panel="Look")(verb)


def explain(
    run: options.RunName = None,
    host: options.Host = None,
    ct: options.Ct = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", help="Which attempt; default the newest that failed.")
    ] = None,
    playbook: options.WatchPlaybook = None,
    as_json: options.Json = False,
) -> None:
    """Say what happened to a run, with the lines that prove it and what the playbook does about it.

    Examples:

        dflashctl explain
        dflashctl explain b32 --attempt 1
    """
    with opened_record() as record:
        row = find_run(record, run, host, ct)
        told = _look_up(record, row, attempt)
    diagnosis = told.diagnosis
    book = load_playbook(playbook) if playbook else playbook_of(row)
    rule = book.rule_of(diagnosis.diagnosis) if diagnosis.failure else None
    context = _around(row, diagnosis)
    if as_json:
        print_json(
            {
                "run": row.name,
                "attempt": diagnosis.attempt,
                "at": timestamp(diagnosis.at),
                "state": diagnosis.state.value,
                "failure": diagnosis.failure.value if diagnosis.failure else None,
                "summary": diagnosis.summary,
                "confidence": diagnosis.confidence,
                "fingerprint": diagnosis.fingerprint,
                "evidence": [
                    {
                        "source": e.source,
                        "text": e.text,
                        "offset": e.offset,
                        "rank": e.rank,
                        "role": e.role.value,
                    }
                    for e in diagnosis.evidence
                ],
                "rule": {"act": rule.act.value, "why": rule.why} if rule else None,
                "stacks": list(told.stacks),
                "before": list(told.before),
                "log": context,
            }
        )
        return
    _print_explained(row, told, rule, context)


@dataclass(frozen=True)
class _Told:
    """What the record says of one diagnosis."""

    diagnosis: DiagnosisRow
    actions: tuple[str, ...]  # after it
    stacks: tuple[str, ...]  # of the same attempt
    before: tuple[str, ...]  # what was told while it lived


def _look_up(record: Record, row: RunRow, attempt: int | None) -> _Told:
    """Return the newest death or hang, else the newest of what was told.

    Raises:
        NotFound: There is no such attempt, or no failure on record.
    """
    found = [d for d in record.diagnoses(row.id) if attempt in (None, d.attempt) and d.failure is not None]
    made = [each.n for each in record.attempts(row.id)]
    if attempt is not None and attempt not in made:
        raise NotFound(
            f"{row.name}: there is no attempt {attempt}, so no failure on record",
            hint=f"attempts: {', '.join(map(str, made)) or 'none'}",
        )
    if not found:
        raise NotFound(
            f"{row.name}: no failure on record, where a watch puts them",
            hint=f"`dflashctl status {row.name}` looks at it now",
        )
    diagnosis = next((d for d in reversed(found) if d.state in (RunState.DEAD, RunState.HUNG)), found[-1])
    events = record.events(row.id, limit=1000)
    mine = [e for e in events if e.attempt == diagnosis.attempt and e.kind == "outcome"]
    living = [d for d in found if d.attempt == diagnosis.attempt and d.state in _LIVING and d != diagnosis]
    # What hung and was stopped by us is dead now: what was read of the hang is still the proof.
    return _Told(
        diagnosis=diagnosis,
        actions=tuple(e.text for e in events if e.at >= diagnosis.at and _is_next(e, diagnosis.attempt)),
        stacks=tuple(e.text.removeprefix("stacks: ") for e in mine if e.detail.get("action") == "stacks"),
        before=tuple(dict.fromkeys(_with_readings(d) for d in living)),
    )


def _is_next(event: EventRow, attempt: int) -> bool:
    """Whether it tells of an act, or of how an attempt after this one went."""
    return event.kind == "action" or (event.kind in ("started", "ended") and (event.attempt or 0) > attempt)


def _with_readings(diagnosis: DiagnosisRow) -> str:
    read = [e.text for e in diagnosis.evidence if e.role is Role.CONFIRMATION and e.source != "history"]
    return "; ".join([diagnosis.summary, *read])


def explained(record: Record, row: RunRow) -> Iterator[list[str]]:
    """Return what `explain` says as lines: first what the record knows, then with the log around the proof.

    Raises:
        NotFound: No failure is on record.
        RecordError: The record cannot be read.
    """
    told = _look_up(record, row, None)
    diagnosis = told.diagnosis
    book = playbook_of(row)
    rule = book.rule_of(diagnosis.diagnosis) if diagnosis.failure else None
    yield [_title(row, diagnosis), *_explained_lines(told, rule, ["(reading the log around it ...)"])]
    yield [_title(row, diagnosis), *_explained_lines(told, rule, _around(row, diagnosis))]


def _title(row: RunRow, diagnosis: DiagnosisRow) -> str:
    name = diagnosis.failure.value if diagnosis.failure else diagnosis.state.value
    at = f"{row.name} at {row.target_key}"
    return f"{name} in attempt {diagnosis.attempt} of {at}, {age_text(diagnosis.at)} ago"


def _explained_lines(told: _Told, rule: Rule | None, context: Sequence[str]) -> list[str]:
    diagnosis = told.diagnosis
    lines = [f"{plain(diagnosis.summary)} (confidence {diagnosis.confidence:.0%})"]
    for item in diagnosis.evidence:
        where = f" byte {item.offset}" if item.offset is not None else ""
        lines.append(f"  {item.role.value} ({item.source}{where}): {plain(item.text)}")
    lines += [f"  before it: {plain(text)}" for text in told.before]
    lines += [f"  stacks: {plain(text)}" for text in told.stacks]
    if context:
        lines += ["the log around it:", *(f"  | {line}" for line in context)]
    if rule:
        lines.append(f"playbook: {rule.act.value}. {rule.why}")
    return lines + [f"  then: {plain(action)}" for action in told.actions[:5]]


def _print_explained(row: RunRow, told: _Told, rule: Rule | None, context: list[str]) -> None:
    name, _, rest = _title(row, told.diagnosis).partition(" in attempt ")
    SETTINGS.out.print(name, style="bold red", end="", markup=False)
    SETTINGS.out.print(f" in attempt {rest}", markup=False)
    for line in _explained_lines(told, rule, context):
        SETTINGS.out.print(line, markup=False, style="dim" if line == "the log around it:" else None)


def _around(row: RunRow, diagnosis: DiagnosisRow) -> list[str]:
    """Return the log's lines around the first piece of evidence; empty if it cannot be reached."""
    offset = next((e.offset for e in diagnosis.evidence if e.offset is not None), None)
    if offset is None:
        return []
    site = site_of(row)
    try:
        begin = max(0, offset - _AROUND_BYTES)
        request = {
            "state_dir": site.state_dir,
            "run": row.name,
            "attempt": diagnosis.attempt,
            "offset": begin,
            "limit": 2 * _AROUND_BYTES,
            "follow": False,
        }
        messages = site.client().call("tail", request, timeout_s=30.0)
    except (BlindError, GuestRefused):
        return []
    finally:
        site.close()
    data = b"".join(unpack_bytes(m["data"]) for m in messages if m["type"] == "log")[: 2 * _AROUND_BYTES]
    lines = data.decode("utf-8", "replace").splitlines()
    return [plain(line, 300) for line in (lines[1:] if begin else lines)][-40:]


def events(
    run: options.RunName = None,
    host: options.Host = None,
    ct: options.Ct = None,
    since: Annotated[str | None, typer.Option("--since", help="Only the last 30m, 2h, 7d.")] = None,
    limit: Annotated[int, typer.Option("--limit", help="At most so many, the newest.", min=1)] = 200,
    as_json: options.Json = False,
) -> None:
    """List what happened: attempts, changes of state, diagnoses, and every act with its outcome.

    Examples:

        dflashctl events
        dflashctl events b32 --since 2h --json
    """
    with opened_record() as record:
        row = find_run(record, run, host, ct) if run or host or ct is not None else None
        begin = SETTINGS.clock.now() - timedelta(seconds=options.seconds(since)) if since else None
        found = record.events(row.id if row else None, since=begin, limit=limit)
    if as_json:
        rows = [
            {
                "at": timestamp(e.at),
                "run": e.run,
                "attempt": e.attempt,
                "kind": e.kind,
                "text": e.text,
                "detail": dict(e.detail),
            }
            for e in found
        ]
        print_json({"events": rows})
        return
    if not found:
        SETTINGS.out.print("nothing on record", markup=False)
        return
    for event in found:
        clock = event.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        SETTINGS.out.print(
            f"{clock} {event.run} [{event.attempt}] {event.kind}: {plain(event.text)}", markup=False
        )
