"""What of a playbook can never happen: rungs that nobody may take, relaunches that no rung is left for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.cli.context import counted
from orchestrator.ladder import outside

if TYPE_CHECKING:
    from orchestrator.playbook import Playbook, Rule


def idle_parts(book: Playbook) -> list[str]:
    """Return what of the rules can never happen."""
    return [
        note
        for rule in (*(each.rule for each in book.custom), *book.rules.values())
        for note in idle(rule, book)
    ]


def idle(rule: Rule, book: Playbook) -> list[str]:
    """Return which rungs can never be taken, by what `allow` says, and which relaunches never come."""
    notes = []
    for number, rung in enumerate(rule.ladder, 1):
        for key in rung.keys:
            if key not in book.allow:
                why = f"changes {key}, which `allow` does not name"
                notes.append(f"{rule.key}: rung {number} {why}; it is passed over")
        for key, value in rung.changes:
            if key in book.allow and (why := outside(key, value, book.allow)):
                notes.append(f"{rule.key}: rung {number}: {why}; it is passed over")
    if rule.ladder and rule.attempts > len(rule.ladder):
        told = (
            f"the ladder has {counted(len(rule.ladder), 'rung')}, so of {rule.attempts} attempts no more come"
        )
        notes.append(f"{rule.key}: {told}")
    return notes
