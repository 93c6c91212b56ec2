"""The main job on this machine: a drafter trains, crashes with the FX-trace error, and is brought back.

Everything is the ordinary path over `--host local`; only the failure is asked for. It checks what it shows:
each step that did not happen is an error, so the demo cannot pass by looking right.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.connection import TMUX_SOCKET
from orchestrator.errors import Exit, OrchestratorError
from orchestrator.inventory import Target
from orchestrator.launch import RunSpec
from orchestrator.observe import look
from orchestrator.observe.parse import exit_record
from orchestrator.operate import Operator
from orchestrator.plot import plot_run
from orchestrator.record import DiagnosisRow, Record, RunRow
from orchestrator.types.failure import FailureClass
from orchestrator.types.seen import Present

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from orchestrator.clock import Clock
    from orchestrator.connection.guest import Progress
    from orchestrator.site import Site

RUN = "demo"
INJECTION = {"tiny": "fx-trace@130", "fast": "fx-trace@12"}


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What the demo showed, measured."""

    crash: str
    evidence: str
    crashed_at_step: int
    detected_in_s: float
    resumed_at_step: int
    attempts: int
    result: dict[str, Any]
    picture: Path


def prepare(out: Path) -> Target:
    """Return the demo's target in a fresh folder.

    Raises:
        OrchestratorError: torch is not installed beside dflashctl.
    """
    if importlib.util.find_spec("torch") is None:
        raise OrchestratorError(
            "the demo trains for real and needs torch", hint="pip install 'dflashctl[trainer,plot]'"
        )
    return Target(python=sys.executable, guest_python=sys.executable, state_dir=str(out.resolve() / "state"))


def clear(out: Path, site: Site, clock: Clock) -> None:
    """End and remove an earlier demo in the same folder."""
    if (out / "state").exists():
        with Record.open(out / "record.sqlite3") as record:
            rows = [row for row in record.runs() if row.name == RUN]
            for row in rows:
                Operator(site, record, clock).stop(row, reason="a new demo begins", grace_s=5.0)
        site.drop()
        shutil.rmtree(out / "state")
    for name in ("record.sqlite3", "record.sqlite3-wal", "record.sqlite3-shm", "loss.png"):
        (out / name).unlink(missing_ok=True)


def launch(
    site: Site, record: Record, clock: Clock, config: str, playbook: str, progress: Progress | None
) -> RunRow:
    """Launch attempt 1 with the failure asked for."""
    spec = RunSpec(run=RUN, python=sys.executable, config=config, inject=(INJECTION[config],))
    return Operator(site, record, clock).launch(spec, {}, playbook=playbook, progress=progress).row


def conclude(site: Site, record: Record, clock: Clock, row: RunRow, out: Path) -> DemoResult:
    """Check that all of it really happened, and draw the curves.

    Raises:
        OrchestratorError: A step is missing.
    """
    crash = next((d for d in record.diagnoses(row.id) if d.failure is FailureClass.FX_TRACE_RACE), None)
    attempts = record.attempts(row.id)
    if crash is None:
        raise _missing("the crash was not diagnosed as fx_trace_race", record, row)
    if len(attempts) < 2:
        raise _missing("it was not relaunched", record, row)
    tracker = look(site, RUN, clock)
    view = tracker.view
    if view is None or not isinstance(view.result, Present):
        raise _missing("the last attempt left no result", record, row)
    first, last = attempts[0], attempts[-1]
    if not last.first_step or last.first_step > (first.last_step or 0):
        raise _missing(f"it resumed at step {last.first_step}, not at a checkpoint", record, row)
    return DemoResult(
        crash=crash.summary,
        evidence=_evidence(crash),
        crashed_at_step=first.last_step or 0,
        detected_in_s=_latency(site, row, crash),
        resumed_at_step=last.first_step,
        attempts=len(attempts),
        result=view.result.value,
        picture=plot_run(record, row.id, out / "loss.png"),
    )


def leave(site: Site, record: Record, row: RunRow) -> None:
    """End the demo's tmux session; its pane has only shown the log."""
    session = record.attempts(row.id)[-1].session or RUN
    argv = ("tmux", "-L", TMUX_SOCKET, "kill-session", "-t", f"={session}")
    site.shell().run(argv, timeout_s=10.0)


def _missing(what: str, record: Record, row: RunRow) -> OrchestratorError:
    said = "; ".join(event.text for event in record.events(row.id, limit=8))
    return OrchestratorError(f"the demo did not go as it should: {what} (record: {said})")


def _evidence(diagnosis: DiagnosisRow) -> str:
    return next(
        (item.text for item in diagnosis.evidence if item.offset is not None), diagnosis.evidence[0].text
    )


def _latency(site: Site, row: RunRow, diagnosis: DiagnosisRow) -> float:
    """Return seconds from the exit that the supervisor stamped to the diagnosis, on one clock."""
    path = Path(site.state_dir, "runs", row.name, "attempts", str(diagnosis.attempt), "exit.json")
    return (diagnosis.at - exit_record(json.loads(path.read_text())).at).total_seconds()


def story(result: DemoResult, say: Callable[[str], None]) -> Exit:
    """Tell what happened, in the order in which it happened."""
    say("")
    say(f"  crash       step {result.crashed_at_step}: {result.crash}")
    say(f"  evidence    {result.evidence}")
    say(f"  detected    {result.detected_in_s:.2f} s after the process ended")
    say(f"  resumed     attempt {result.attempts} from the checkpoint of step {result.resumed_at_step}")
    for line in acceptance_lines(result.result):
        say(f"  {line}")
    say(f"  drafter     {result.result['export']}")
    say(f"  curves      {result.picture}")
    return Exit.OK


def acceptance_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the acceptance figures of result.json in words, with what costs nothing beside them."""
    lines = [f"acceptance  {result['acceptance_length']:.2f} draft tokens a verification, on held-out files"]
    details = result.get("acceptance") or {}
    titles = {"teacher_forced": "teacher-forced", "decoded": "decoding, token for token the target's own"}
    for key, title in titles.items():
        found = details.get(key)
        if found:
            names = {"drafter": "drafter", "untrained": "untrained", "lookup": "4-gram look-up"}
            figures = ", ".join(f"{name} {found[k]:.2f}" for k, name in names.items() if k in found)
            distinct = (
                f"; distinct 16-grams {found['distinct_16grams']:.0%}" if "distinct_16grams" in found else ""
            )
            lines.append(f"            {title}: {figures}{distinct}")
    return lines
