"""status, ps, logs, attach, explain, events, plot: they look, and change nothing."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.table import Table

from orchestrator.classify import diagnose
from orchestrator.cli import options
from orchestrator.cli.context import (
    SETTINGS,
    find_run,
    load_playbook,
    opened_record,
    print_json,
    site_of,
)
from orchestrator.clock import timestamp
from orchestrator.connection import attach_argv
from orchestrator.errors import BlindError, Exit, GuestRefused, NotFound, OrchestratorError
from orchestrator.inventory import Target
from orchestrator.observe import RunTracker
from orchestrator.observe.stream import PING_EVERY_S
from orchestrator.operate import look
from orchestrator.plot import plot_run
from orchestrator.record import DiagnosisRow, Record, RunRow
from orchestrator.terminal import clean, plain
from orchestrator.types import Blind, Diagnosis, Present, RunState
from orchestrator.view.live import gpu_text
from orchestrator.wire import unpack_bytes

_AROUND_BYTES = 2000
_EXIT_OF_STATE = {
    RunState.DEAD: Exit.FAILED,
    RunState.HUNG: Exit.HUNG,
    RunState.STOPPED: Exit.NOT_RUNNING,
    RunState.BLIND: Exit.UNREACHABLE,
    RunState.CONTAINER_STOPPED: Exit.NOT_READY,
}
_COLOURS = {RunState.HEALTHY: "green", RunState.FINISHED: "green", RunState.DEAD: "red", RunState.HUNG: "red"}


def register(app: typer.Typer) -> None:
    """Add this file's verbs."""
    for verb in (status, ps, logs, attach, explain, events, plot):
        app.command(rich_help_panel="Look")(verb)


def _diagnose_now(row: RunRow) -> tuple[RunTracker | None, Diagnosis]:
    """Look at a run; a container that cannot be reached is a blind diagnosis, not an error."""
    site = site_of(row)
    try:
        tracker = look(site, row.name, SETTINGS.clock)
    except (BlindError, GuestRefused) as error:
        return None, Diagnosis(state=RunState.BLIND, failure=None, summary=str(error))
    finally:
        site.close()
    snapshot = tracker.snapshot(SETTINGS.clock.now())
    if snapshot is None:
        return tracker, Diagnosis(state=RunState.NEW, failure=None, summary="never started there")
    limits = load_playbook(row.playbook).limits_for(tracker.median_step_s)
    return tracker, diagnose(snapshot, limits)


def status(
    run: options.RunName = None, host: options.Host = None, ct: options.Ct = None, as_json: options.Json = False
) -> None:
    """Look at one run now: state, phase, step, GPUs, and why it ended if it did.

    Examples:

        dflashctl status
        dflashctl status b32 --json
    """
    with opened_record() as record:
        row = find_run(record, run, host, ct)
        tracker, diagnosis = _diagnose_now(row)
        last = record.latest_diagnosis(row.id)
    body = _status_body(row, tracker, diagnosis)
    if as_json:
        print_json(body)
    else:
        _print_status(body, tracker, diagnosis, last)
    raise typer.Exit(_EXIT_OF_STATE.get(diagnosis.state, Exit.OK))


def _status_body(row: RunRow, tracker: RunTracker | None, diagnosis: Diagnosis) -> dict[str, Any]:
    view = tracker.view if tracker else None
    beat = view.heartbeat.value if view and isinstance(view.heartbeat, Present) else None
    return {
        "run": row.name,
        "target": row.target_key,
        "state": diagnosis.state.value,
        "failure": diagnosis.failure.value if diagnosis.failure else None,
        "summary": diagnosis.summary,
        "attempt": view.number if view else None,
        "phase": beat.phase.value if beat else None,
        "step": beat.step if beat else None,
        "total_steps": beat.total_steps if beat else None,
        "loss": beat.loss if beat else None,
        "tokens_per_s": beat.tokens_per_s if beat else None,
        "heartbeat_at": timestamp(beat.at) if beat else None,
        "checkpoint_step": tracker.checkpoint_step if tracker else None,
        "gpus": [gpu_text(gpu) for gpu in tracker.gpus.value] if tracker and isinstance(tracker.gpus, Present) else [],
        "gpu_problem": tracker.gpus.reason if tracker and isinstance(tracker.gpus, Blind) else None,
        "result": view.result.value if view and isinstance(view.result, Present) else None,
    }


def _print_status(
    body: Mapping[str, Any], tracker: RunTracker | None, diagnosis: Diagnosis, last: DiagnosisRow | None
) -> None:
    out = SETTINGS.out
    colour = _COLOURS.get(diagnosis.state, "yellow")
    out.print(f"{body['run']} at {body['target']}: [{colour}]{diagnosis.state.value}[/]", end="")
    out.print(f"  {plain(diagnosis.summary)}", markup=False)
    if body["phase"]:
        steps = f"{body['step']}/{body['total_steps'] or '?'}"
        loss = f", loss {body['loss']:.3f}" if body["loss"] is not None else ""
        speed = f", {body['tokens_per_s'] / 1e3:.1f} ktok/s" if body["tokens_per_s"] else ""
        out.print(f"  attempt {body['attempt']}, {body['phase']}, step {steps}{loss}{speed}", markup=False)
    if body["checkpoint_step"] is not None:
        out.print(f"  newest complete checkpoint: step {body['checkpoint_step']}", markup=False)
    for gpu in body["gpus"]:
        out.print(f"  {gpu}", markup=False)
    for item in diagnosis.evidence[:5]:
        where = f" byte {item.offset}" if item.offset is not None else ""
        out.print(f"  evidence ({item.source}{where}): {plain(item.text)}", markup=False)
    if tracker is None and last is not None:
        out.print(f"  last known, {_age(last.at)} ago: {plain(last.summary)}", markup=False)


def _age(at: datetime) -> str:
    seconds = int((SETTINGS.clock.now() - at).total_seconds())
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


def ps(
    offline: Annotated[bool, typer.Option("--offline", help="Only what the record knows; connect to nothing.")] = False,
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
                found = [_status_body(row, *result) for row, result in zip(rows, pool.map(_diagnose_now, rows), strict=True)]
    if as_json:
        print_json({"runs": found})
        return
    if not found:
        SETTINGS.out.print("no runs yet; start one with `dflashctl launch`", markup=False)
        return
    table = Table(box=None, pad_edge=False)
    for title in ("RUN", "TARGET", "STATE", "ATTEMPT", "PHASE", "STEP", "LOSS", "SUMMARY"):
        table.add_column(title, no_wrap=title != "SUMMARY")
    for body in found:
        step = f"{body['step']}/{body['total_steps'] or '?'}" if body["step"] is not None else ""
        loss = f"{body['loss']:.3f}" if body["loss"] is not None else ""
        cells = (body["run"], body["target"], body["state"], body["attempt"], body["phase"], step, loss)
        table.add_row(*(plain(str(cell if cell is not None else "")) for cell in cells), plain(body["summary"], 100))
    SETTINGS.out.print(table)


def _offline_body(record: Record, row: RunRow) -> dict[str, Any]:
    attempts = record.attempts(row.id)
    last = record.latest_diagnosis(row.id)
    body = _status_body(row, None, Diagnosis(state=row.state, failure=None, summary=last.summary if last else ""))
    if attempts:
        body.update(attempt=attempts[-1].n, step=attempts[-1].last_step, checkpoint_step=attempts[-1].checkpoint_step)
    return body


def logs(
    run: options.RunName = None,
    host: options.Host = None,
    ct: options.Ct = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it grows.")] = False,
    tail: Annotated[int, typer.Option("--tail", "-n", help="Kilobytes from the end; 0 is all.", min=0)] = 64,
    attempt: Annotated[Optional[int], typer.Option("--attempt", help="Which attempt; default the newest.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="The bytes as they are, control sequences included.")] = False,
) -> None:
    """Print the trainer's own output, from the container.

    Examples:

        dflashctl logs -f
        dflashctl logs b32 --attempt 1 --tail 0 | less -R
    """
    with opened_record() as record:
        row = find_run(record, run, host, ct)
    site = site_of(row)
    request: dict[str, Any] = {"state_dir": "", "run": row.name, "attempt": attempt, "offset": None, "follow": follow}
    request.update({"offset": 0, "last_bytes": 0} if tail == 0 else {"last_bytes": tail * 1024})
    pending = b""
    try:
        request["state_dir"] = site.state_dir
        stream = site.client().watch(request, verb="tail")
        while not stream.is_ended:
            message = stream.read(PING_EVERY_S)
            if message is None and not stream.is_ended:
                stream.send("ping", {})
            elif message is not None and message["type"] == "log":
                pending = _write_log(pending + unpack_bytes(message["data"]), raw=raw)
            elif message is not None and message["type"] == "end":
                break
        if pending:
            _write_log(pending + b"\n", raw=raw)
    finally:
        site.close()


def _write_log(data: bytes, *, raw: bool) -> bytes:
    """Write whole lines and return the rest; what comes out of a container is hostile."""
    if raw:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return b""
    *lines, rest = data.split(b"\n")
    colour = sys.stdout.isatty() and not SETTINGS.out.no_color
    for line in lines:
        text = line.rsplit(b"\r", 1)[-1].decode("utf-8", "replace")
        sys.stdout.write((clean(text) if colour else plain(text)) + "\n")
    sys.stdout.flush()
    return rest


def attach(
    run: options.RunName = None, host: options.Host = None, ct: options.Ct = None, dry_run: options.DryRun = False
) -> None:
    """Enter the run's tmux session; leave it with Ctrl-b d. The pane shows the log; closing it harms nothing.

    Examples:

        dflashctl attach
        dflashctl attach b32 --dry-run
    """
    with opened_record() as record:
        row = find_run(record, run, host, ct)
        attempts = record.attempts(row.id)
    session = (attempts[-1].session if attempts else None) or row.name
    argv = attach_argv(Target.from_json(row.target), session)
    if dry_run:
        SETTINGS.out.print(shlex.join(argv), markup=False)
        return
    try:
        os.execvp(argv[0], argv)
    except FileNotFoundError as error:
        raise OrchestratorError(f"{argv[0]} is not on this machine", hint=f"install it, or run: {shlex.join(argv)}") from error


def explain(
    run: options.RunName = None,
    host: options.Host = None,
    ct: options.Ct = None,
    attempt: Annotated[Optional[int], typer.Option("--attempt", help="Which attempt; default the newest that failed.")] = None,
    as_json: options.Json = False,
) -> None:
    """Say what happened to a run, with the lines that prove it and what the playbook does about it.

    Examples:

        dflashctl explain
        dflashctl explain b32 --attempt 1
    """
    with opened_record() as record:
        row = find_run(record, run, host, ct)
        found = [d for d in record.diagnoses(row.id) if attempt in (None, d.attempt) and d.failure is not None]
        if not found:
            raise NotFound(f"{row.name}: no failure on record", hint="`dflashctl status` looks at it now")
        diagnosis = next((d for d in reversed(found) if d.state in (RunState.DEAD, RunState.HUNG)), found[-1])
        actions = [e for e in record.events(row.id, limit=1000) if e.kind == "action" and e.at >= diagnosis.at]
    rule = load_playbook(row.playbook).rule(diagnosis.failure) if diagnosis.failure else None
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
                    {"source": e.source, "text": e.text, "offset": e.offset, "rank": e.rank, "role": e.role.value}
                    for e in diagnosis.evidence
                ],
                "rule": {"act": rule.act.value, "why": rule.why} if rule else None,
                "log": context,
            }
        )
        return
    out = SETTINGS.out
    title = diagnosis.failure.value if diagnosis.failure else diagnosis.state.value
    out.print(f"[bold red]{title}[/] in attempt {diagnosis.attempt} of {row.name} at {row.target_key}, {_age(diagnosis.at)} ago")
    out.print(f"{plain(diagnosis.summary)} (confidence {diagnosis.confidence:.0%})", markup=False)
    for item in diagnosis.evidence:
        where = f" byte {item.offset}" if item.offset is not None else ""
        out.print(f"  {item.role.value} ({item.source}{where}): {plain(item.text)}", markup=False)
    if context:
        out.print("the log around it:", style="dim")
        for line in context:
            out.print(f"  | {line}", markup=False)
    if rule:
        out.print(f"playbook: {rule.act.value}. {rule.why}", markup=False)
    for event in actions[:5]:
        out.print(f"  then: {plain(event.text)}", markup=False)


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
    since: Annotated[Optional[str], typer.Option("--since", help="Only the last 30m, 2h, 7d.")] = None,
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
            {"at": timestamp(e.at), "run": e.run, "attempt": e.attempt, "kind": e.kind, "text": e.text, "detail": dict(e.detail)}
            for e in found
        ]
        print_json({"events": rows})
        return
    if not found:
        SETTINGS.out.print("nothing on record", markup=False)
    for event in found:
        clock = event.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        attempt = f" [{event.attempt}]" if event.attempt is not None else ""
        SETTINGS.out.print(f"{clock} {event.run}{attempt} {event.kind}: {plain(event.text)}", markup=False)


def plot(
    run: options.RunName = None,
    host: options.Host = None,
    ct: options.Ct = None,
    out: Annotated[Optional[Path], typer.Option("--out", "-o", help="The PNG file; default <run>.png.")] = None,
) -> None:
    """Draw loss and throughput across attempts, with the deaths marked, as a PNG.

    Examples:

        dflashctl plot
        dflashctl plot b32 --out b32.png
    """
    with opened_record() as record:
        row = find_run(record, run, host, ct)
        path = plot_run(record, row.id, out or Path(f"{row.name}.png"))
    SETTINGS.out.print(str(path), markup=False)
