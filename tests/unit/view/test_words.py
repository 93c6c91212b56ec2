"""The words of a watch: each is said once a line."""

from __future__ import annotations

import io
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.types.decision import ActKind, Decision
from orchestrator.types.failure import Diagnosis, FailureClass, RunState
from orchestrator.view.plain import PlainSink, evidence_lines
from orchestrator.watch.events import WatchEvent
from orchestrator.watch.telling import Teller

if TYPE_CHECKING:
    from collections.abc import Callable

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
F, S = FailureClass, RunState


def told(tell: Callable[[Teller], object]) -> str:
    """Return the line that is told, from its kind on."""
    out = io.StringIO()
    row: Any = SimpleNamespace(name="r1", target_key="pve/200")
    record: Any = None
    tell(Teller(row, record, PlainSink(out)))
    return out.getvalue().rstrip().partition(" r1 ")[2]


@pytest.mark.parametrize(
    ("state", "failure", "summary", "line"),
    [
        (S.BLIND, None, "could not look: reset", "blind: could not look: reset; it was never seen"),
        (S.HUNG, F.HANG, "hung: no progress", "diagnosis: hung - no progress"),
        (S.HUNG, F.NCCL_TIMEOUT, "hung: no progress", "diagnosis: hung: nccl_timeout - no progress"),
        (S.STOPPED, F.KILLED_BY_USER, "stopped by its user: x", "state: stopped by its user: x"),
        (S.FINISHED, F.COMPLETED, "finished at step 3", "diagnosis: finished at step 3"),
        (S.HEALTHY, F.HEALTHY, "train, step 1", "state: healthy - train, step 1"),
        (S.DEAD, F.HANG, "died: it hung", "diagnosis: dead: hang - died: it hung"),
        (S.DEAD, F.OOM_CUDA, "died at step 3", "diagnosis: dead: oom_cuda - died at step 3"),
        (S.CONTAINER_STOPPED, F.CONTAINER_STOPPED, "it is", "diagnosis: container_stopped - it is"),
    ],
)
def test_a_diagnosis_says_each_thing_once(state, failure, summary, line):
    diagnosis = Diagnosis(state=state, failure=failure, summary=summary)
    assert told(lambda teller: teller.diagnosis(diagnosis, NOW, None)) == line


@pytest.mark.parametrize(("acting", "end"), [(True, ""), (False, " (observe-only: nothing is done)")])
def test_a_decision_says_once_what_and_when(acting, end):
    reason = "relaunch 1 of 2 for this cause, in 2s. It passes."
    decision = Decision(kind=ActKind.RELAUNCH, reason=reason, not_before=NOW + timedelta(seconds=2))
    line = told(lambda teller: teller.decision(decision, NOW, acting=acting))
    assert line == f"decision: relaunch: 1 of 2 for this cause, in 2s. It passes.{end}"


@pytest.mark.parametrize(
    ("kind", "text", "line"),
    [
        ("attempt", "attempt 2", "attempt 2"),
        ("blind", "blind for 30s: reset", "blind for 30s: reset"),
        ("act", "actually", "act: actually"),
    ],
)
def test_a_text_that_begins_with_its_kind_stands_alone(kind, text, line):
    event = WatchEvent(kind=kind, at=NOW, run="r1", target="pve/200", attempt=None, text=text)
    assert PlainSink(io.StringIO()).lines(event)[0].partition(" r1 ")[2] == line


def test_a_line_that_proves_it_twice_is_told_once_and_leaves_room_for_others():
    line = {"source": "log", "offset": 9, "rank": None, "text": "LustreError"}
    others = [{"source": "log", "offset": n, "rank": 1, "text": "a"} for n in range(3)]
    assert evidence_lines({"evidence": [line, line, *others]}) == [
        "evidence (log byte 9): LustreError",
        "evidence (log byte 0 rank 1): a",
        "evidence (log byte 1 rank 1): a",
    ]
