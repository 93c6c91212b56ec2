"""What a pane alone tells of a session that dflashctl did not start. Pure; it says less, and says so."""

from __future__ import annotations

from orchestrator.classify.cause import log_cause
from orchestrator.classify.titles import title
from orchestrator.types import Diagnosis, LogReading, RunState

PANE_CONFIDENCE = 0.7


def diagnose_pane(log: LogReading, *, is_dead: bool) -> Diagnosis:
    """Return what the last lines show; `is_dead` says that tmux marks the pane dead.

    A shell may outlive the trainer in its pane, so a living pane proves nothing; only the lines do.
    """
    cause = log_cause(log)
    if cause is not None:
        return Diagnosis(
            state=RunState.DEAD,
            failure=cause.failure,
            summary=f'the pane shows: {cause.words or title(cause.failure)} ("{cause.root.text[:160]}")',
            evidence=(cause.root, *cause.evidence),
            confidence=min(cause.confidence, PANE_CONFIDENCE),
            fingerprint=cause.fingerprint,
        )
    at = f", last seen at step {log.last_step}" if log.last_step is not None else ""
    if is_dead:
        summary = f"the pane's program has ended, and its lines do not say why{at}"
        return Diagnosis(state=RunState.DEAD, failure=None, summary=summary, confidence=0.5)
    return Diagnosis(
        state=RunState.UNSUPERVISED,
        failure=None,
        summary=f"nothing in the pane looks like a crash{at}",
        confidence=0.5,
    )
