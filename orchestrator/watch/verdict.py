"""What is thought of a run's newest attempt: the diagnosis, the decision, and whether that is its end. Pure.

A decision outlives a cut: the same sight again does not start its wait anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.errors import Exit
from orchestrator.launch import RELAUNCH_REASON
from orchestrator.types.decision import ActKind, Decision
from orchestrator.types.failure import Diagnosis, RunState

if TYPE_CHECKING:
    from datetime import datetime, timedelta

_LIVING = frozenset({RunState.NEW, RunState.HEALTHY, RunState.UNSUPERVISED, RunState.ENDING})
_TO_DECIDE = frozenset({RunState.DEAD, RunState.HUNG, RunState.CONTAINER_STOPPED})
_KEPT = frozenset({RunState.DEAD, RunState.HUNG})
_FINAL_EXIT = {RunState.FINISHED: Exit.OK, RunState.STOPPED: Exit.NOT_RUNNING}


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


class Verdict:
    """One run's. `ended` is the exit code for its end; None while there is something to watch."""

    def __init__(self) -> None:
        self.diagnosis: Diagnosis | None = None
        self.decision: Decision | None = None
        self.ended: Exit | None = None
        self._kept: Kept | None = None
        self._is_passing = False  # stopped for a moment only: the next attempt is about to come

    def forget(self) -> None:
        """A new attempt began."""
        self.diagnosis, self.decision, self.ended, self._kept = None, None, None, None
        self._is_passing = False

    @property
    def is_living(self) -> bool:
        """It was last seen alive."""
        return self.diagnosis is not None and self.diagnosis.state in _LIVING

    @property
    def hangs(self) -> bool:
        """It was last seen to hang."""
        return self.diagnosis is not None and self.diagnosis.state is RunState.HUNG

    @property
    def is_told_dead(self) -> bool:
        """Its death was seen and told."""
        return self.diagnosis is not None and self.diagnosis.state is RunState.DEAD

    @property
    def is_open(self) -> bool:
        """Something is yet to be learned or decided: nothing was seen, it hangs, or its death has no end."""
        return self.diagnosis is None or self.hangs or (self.is_told_dead and self.ended is None)

    @property
    def wants_decision(self) -> bool:
        """What is seen calls for a decision, and none was made."""
        is_of_use = self.diagnosis is not None and self.diagnosis.state in _TO_DECIDE
        return is_of_use and self.ended is None and self.decision is None

    @property
    def awaits_relaunch(self) -> bool:
        """A person who relaunches stopped it, and nothing was decided about what does not come."""
        return self._is_passing and self.ended is None and self.decision is None

    def note(self, diagnosis: Diagnosis, stop_reason: str | None) -> bool:
        """Take what is seen now; returns whether it is other than before."""
        before, self.diagnosis = self.diagnosis, diagnosis
        key = (diagnosis.state, diagnosis.failure, diagnosis.fingerprint)
        # A person who relaunches stops the run for a moment only; the next attempt is about to come.
        is_passing = diagnosis.state is RunState.STOPPED and stop_reason == RELAUNCH_REASON
        was_passing, self._is_passing = self._is_passing, is_passing
        is_same = before is not None and (before.state, before.failure, before.fingerprint) == key
        if is_same and was_passing == is_passing:
            return False
        if self.is_living:
            self._kept = None
        self.decision = None
        self.ended = None if is_passing else _FINAL_EXIT.get(diagnosis.state)
        return True

    def resume(self, attempt: int, stop_by: str | None) -> Kept | None:
        """Go on with the decision that was made for the same sight before a cut.

        Returns it with what it was made for; None if there is none.
        """
        kept, seen = self._kept, self.diagnosis
        if kept is None or seen is None or not kept.holds(attempt, seen, stop_by):
            return None
        self.decision = kept.decision
        if kept.diagnosis.state is not seen.state:
            self._kept = Kept(attempt, seen, kept.decision)
        return kept

    def decide(self, attempt: int, decision: Decision, *, acting: bool) -> None:
        """Take the decision for what is seen, which may be the end; `acting`: acts are carried out."""
        if decision.kind is not ActKind.NONE:
            self.decision = decision
            if self.diagnosis is not None and self.diagnosis.state in _KEPT:
                self._kept = Kept(attempt, self.diagnosis, decision)
        self._conclude(decision, acting=acting)

    def overrule(self, decision: Decision, *, acting: bool) -> None:
        """Put another decision in the place of one that cannot be carried out."""
        self.decision = decision
        if self._kept is not None:
            self._kept = replace(self._kept, decision=decision)
        self._conclude(decision, acting=acting)

    def _conclude(self, decision: Decision, *, acting: bool) -> None:
        if decision.kind is ActKind.GIVE_UP:
            self.ended = Exit.GAVE_UP
        elif decision.kind is ActKind.CALL:
            self.ended = Exit.NEEDS_PERSON
        elif self.is_told_dead and (not acting or decision.kind is ActKind.NONE):
            self.ended = Exit.FAILED
        elif self.hangs and not acting:
            self.ended = Exit.HUNG
        elif self._is_passing and decision.kind.is_relaunch and not acting:
            self.ended = Exit.NOT_RUNNING

    def due(self, now: datetime) -> Decision | None:
        """Return the decision if it is a relaunch whose instant has come."""
        decision = self.decision
        if decision is None or not decision.kind.is_relaunch:
            return None
        return decision if decision.not_before is None or decision.not_before <= now else None

    def set_back(self, by: timedelta) -> None:
        """A clock that was set back holds nothing up: what waits for an instant waits as long as before."""
        if self.decision is not None:
            self.decision = _earlier(self.decision, by)
        if self._kept is not None:
            self._kept = replace(self._kept, decision=_earlier(self._kept.decision, by))


def _earlier(decision: Decision, by: timedelta) -> Decision:
    due = decision.not_before
    return replace(decision, not_before=due - by) if due is not None else decision
