"""status and ps: look at runs now."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import options
from orchestrator.cli.context import SETTINGS, age_text, find_run, opened_record, playbook_of, print_json
from orchestrator.cli.reaching import site_of
from orchestrator.cli.tables import print_table
from orchestrator.clock import timestamp
from orchestrator.errors import BlindError, Exit, GuestRefused
from orchestrator.launch import origin
from orchestrator.terminal import one_line, plain
from orchestrator.types.failure import Diagnosis, RunState
from orchestrator.types.seen import Blind, Present

if TYPE_CHECKING:
    from orchestrator.observe import RunTracker
    from orchestrator.record import Record, RunRow

_EXIT_OF_STATE = {
    RunState.DEAD: Exit.FAILED,
    RunState.HUNG: Exit.HUNG,
    RunState.STOPPED: Exit.NOT_RUNNING,
    RunState.BLIND: Exit.UNREACHABLE,
    RunState.CONTAINER_STOPPED: Exit.NOT_READY,
}
_ALIVE = frozenset({RunState.HEALTHY, RunState.UNSUPERVISED, RunState.ENDING, RunState.HUNG})
_COLOURS = {RunState.HEALTHY: "green", RunState.FINISHED: "green", RunState.DEAD: "red", RunState.HUNG: "red"}


def register(app: typer.Typer) -> None:
    """Add this file's verbs."""
    for verb in (status, ps):
        app.command(rich_help_panel="Look")(verb)


def _diagnose_now(row: RunRow, *, gpus: bool = False) -> tuple[RunTracker | None, Diagnosis]:
    """Look at a run; a container that cannot be reached is a blind diagnosis, not an error."""
    from orchestrator.classify import diagnose
    from orchestrator.classify.hostside import may_know
    from orchestrator.observe import look
    from orchestrator.observe.hostlook import kernel_events

    site, book = site_of(row), playbook_of(row)
    try:
        tracker = look(site, row.name, SETTINGS.clock, gpus=gpus, custom=book.custom)
        snapshot = tracker.snapshot(SETTINGS.clock.now())
        if snapshot is None:
            return tracker, Diagnosis(state=RunState.NEW, failure=None, summary="never started there")
        limits = book.limits_for(tracker.median_step_s, tracker.median_phase_s)
        diagnosis = diagnose(snapshot, limits)
        if may_know(diagnosis) and snapshot.started_at is not None:
            tracker.host.ct = site.ct
            tracker.host.add_all(kernel_events(site, snapshot.started_at), tracker.own_gpus)
            diagnosis = diagnose(tracker.snapshot(SETTINGS.clock.now()) or snapshot, limits)
    except (BlindError, GuestRefused) as error:
        return None, Diagnosis(state=RunState.BLIND, failure=None, summary=str(error))
    finally:
        site.close()
    return tracker, diagnosis


def status(
    run: options.RunName = None,
    host: options.Host = None,
    ct: options.Ct = None,
    as_json: options.Json = False,
) -> None:
    """Look at one run now: state, phase, step, GPUs, and why it ended if it did.

    Examples:

        dflashctl status
        dflashctl status b32 --json
    """
    with opened_record() as record:
        row = find_run(record, run, host, ct)
        tracker, diagnosis = _diagnose_now(row, gpus=True)
        known = _last_known(record, row) if tracker is None else None
    body = _status_body(row, tracker, diagnosis)
    if as_json:
        print_json(body)
    else:
        _print_status(body, diagnosis, known)
    raise typer.Exit(_EXIT_OF_STATE.get(diagnosis.state, Exit.OK))


def _status_body(row: RunRow, tracker: RunTracker | None, diagnosis: Diagnosis) -> dict[str, Any]:
    from orchestrator.view.live import gpu_text, gpus_of

    view = tracker.view if tracker else None
    begun = origin(tracker.spec or {}, view.number) if tracker and view else {}
    beat = view.heartbeat.value if view and isinstance(view.heartbeat, Present) else None
    return {
        "run": row.name,
        "target": row.target_key,
        "state": diagnosis.state.value,
        "failure": diagnosis.failure.value if diagnosis.failure else None,
        "summary": diagnosis.summary,
        "attempt": view.number if view else None,
        "by": begun.get("by"),
        "actor": begun.get("actor"),
        "watchers": [each.json for each in tracker.onlookers] if tracker else [],
        "phase": beat.phase.value if beat else None,
        "step": beat.step if beat else None,
        "total_steps": beat.total_steps if beat else None,
        "loss": beat.loss if beat else None,
        "tokens_per_s": beat.tokens_per_s if beat else None,
        "skipped_steps": beat.skipped_steps if beat else None,
        "rollbacks": beat.rollbacks if beat else None,
        "heartbeat_at": timestamp(beat.at) if beat else None,
        "checkpoint_step": tracker.checkpoint_step if tracker else None,
        "gpus": [gpu_text(gpu) for gpu in gpus_of([tracker])] if tracker else [],
        "gpu_problem": tracker.gpus.reason if tracker and isinstance(tracker.gpus, Blind) else None,
        "result": view.result.value if view and isinstance(view.result, Present) else None,
        "log_bytes": view.log_offset if view else None,
        "disk_free_bytes": tracker.disk_free_bytes if tracker else None,
        "log_forecast": _log_forecast(tracker, diagnosis) if tracker else None,
    }


def _log_forecast(tracker: RunTracker, diagnosis: Diagnosis) -> dict[str, Any] | None:
    """Return when the disk is full of the log, by the attempt's whole time; None if that is no danger."""
    from orchestrator.classify.growth import average

    now = SETTINGS.clock.now()
    snapshot = tracker.snapshot(now) if diagnosis.state in _ALIVE else None
    if snapshot is None or snapshot.started_at is None or tracker.disk_free_bytes is None:
        return None
    age_s = (now - snapshot.started_at).total_seconds() + tracker.clock_skew_s
    found = average(tracker.view.log_offset if tracker.view else 0, age_s, tracker.disk_free_bytes)
    if found is None:
        return None
    per_hour = round(found.bytes_per_s * 3600)
    return {"bytes_per_hour": per_hour, "full_in_s": round(found.full_in_s), "text": found.summary}


def _print_status(body: Mapping[str, Any], diagnosis: Diagnosis, known: str | None) -> None:
    out = SETTINGS.out
    colour = _COLOURS.get(diagnosis.state, "yellow")
    out.print(f"{body['run']} at {body['target']}: ", end="", markup=False)
    out.print(diagnosis.state.value, style=colour, end="", markup=False)
    out.print(f"  {plain(diagnosis.summary)}", markup=False)
    if body["by"] == "watch":
        who = body["actor"] or {}
        at = f" of {plain(who['user'])}@{plain(who['host'])} (pid {plain(who['pid'])})" if who else ""
        out.print(f"  attempt {body['attempt']} was relaunched by the watch{at}", markup=False)
    for each in body["watchers"]:
        does = "acts" if each["acts"] else "only looks"
        out.print(
            f"  watched by {plain(each['user'])}@{plain(each['host'])} (pid {plain(each['pid'])}), {does}",
            markup=False,
        )
    if body["phase"]:
        steps = f"{body['step']}/{body['total_steps'] or '?'}"
        loss = f", loss {body['loss']:.3f}" if body["loss"] is not None else ""
        speed = f", {body['tokens_per_s'] / 1e3:.1f} ktok/s" if body["tokens_per_s"] else ""
        out.print(f"  attempt {body['attempt']}, {body['phase']}, step {steps}{loss}{speed}", markup=False)
    if body["checkpoint_step"] is not None:
        out.print(f"  newest complete checkpoint: step {body['checkpoint_step']}", markup=False)
    for gpu in body["gpus"]:
        out.print(f"  {gpu}", markup=False)
    if body["gpu_problem"]:
        out.print(f"  GPUs: {plain(body['gpu_problem'])}", markup=False)
    if body["log_forecast"]:
        out.print(f"  {body['log_forecast']['text']}", style="yellow", markup=False)
    for item in diagnosis.evidence[:5]:
        where = f" byte {item.offset}" if item.offset is not None else ""
        out.print(f"  evidence ({item.source}{where}): {plain(item.text)}", markup=False)
    if known is not None:
        out.print(f"  last known: {known}", markup=False)


def _last_known(record: Record, row: RunRow) -> str:
    """Return what the record says of a run that cannot be looked at, for people."""
    attempts = record.attempts(row.id)
    if not attempts:
        return row.state.value
    newest = attempts[-1]
    step = f", step {newest.last_step}" if newest.last_step is not None else ""
    last = record.latest_diagnosis(row.id, newest.n)
    why = f"; {age_text(last.at)} ago: {plain(last.summary)}" if last is not None else ""
    return f"{row.state.value}, attempt {newest.n}{step}{why}"


def ps(
    offline: Annotated[
        bool, typer.Option("--offline", help="Only what the record knows; connect to nothing.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """List all runs, looking at each container at once.

    Examples:

        dflashctl ps
        dflashctl ps --offline --json
    """
    with opened_record() as record:
        rows = record.runs()
        if offline or not rows:
            found = [_offline_body(record, row) for row in rows]
        else:
            with ThreadPoolExecutor(max_workers=min(16, len(rows))) as pool:
                found = [
                    _status_body(row, *result)
                    for row, result in zip(rows, pool.map(_diagnose_now, rows), strict=True)
                ]
    if as_json:
        print_json({"runs": found})
        return
    if not found:
        SETTINGS.out.print("no runs yet; start one with `dflashctl launch`", markup=False)
        return
    print_table(
        ("RUN", "TARGET", "STATE", "ATTEMPT", "PHASE", "STEP", "LOSS", "SUMMARY"),
        [_cells(body) for body in found],
        elastic={"SUMMARY": 24, "LOSS": 5, "PHASE": 5, "TARGET": 10, "RUN": 12},
    )


def _cells(body: Mapping[str, Any]) -> list[str]:
    step = f"{body['step']}/{body['total_steps'] or '?'}" if body["step"] is not None else ""
    loss = f"{body['loss']:.3f}" if body["loss"] is not None else ""
    cells = (body["run"], body["target"], body["state"], body["attempt"], body["phase"], step, loss)
    return [one_line(str(cell if cell is not None else "")) for cell in (*cells, body["summary"])]


def _offline_body(record: Record, row: RunRow) -> dict[str, Any]:
    attempts = record.attempts(row.id)
    last = record.latest_diagnosis(row.id)
    body = _status_body(
        row, None, Diagnosis(state=row.state, failure=None, summary=last.summary if last else "")
    )
    if attempts:
        body.update(
            attempt=attempts[-1].n, step=attempts[-1].last_step, checkpoint_step=attempts[-1].checkpoint_step
        )
    return body
