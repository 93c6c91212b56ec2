"""A decision that outlives a cut: the same sight again does not start its wait anew. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.types.failure import Diagnosis, RunState

if TYPE_CHECKING:
    from datetime import timedelta

    from orchestrator.types.decision import Decision


@dataclass(frozen=True)
class Kept:
    """A decision and what it was made for."""

    attempt: int
    diagnosis: Diagnosis
    decision: Decision

    def holds(self, attempt: int, diagnosis: Diagnosis, stop_by: str | None) -> bool:
        """Whether it was made for what is seen now."""
        if attempt != self.attempt or diagnosis.failure is not self.diagnosis.failure:
            return False
        if (diagnosis.state, diagnosis.fingerprint) == (self.diagnosis.state, self.diagnosis.fingerprint):
            return True
        # What hung and was stopped by us is dead now; its wait is over and its relaunch still due.
        was_hung = self.diagnosis.state is RunState.HUNG
        return was_hung and diagnosis.state is RunState.DEAD and stop_by == "watch"


def earlier(decision: Decision, by: timedelta) -> Decision:
    """Return the decision with its instant moved, for a clock that was set back."""
    due = decision.not_before
    return replace(decision, not_before=due - by) if due is not None else decision
