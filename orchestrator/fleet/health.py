"""Whether a fleet's watch does what it is for. One that sees nothing or may do nothing is not well. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.types.failure import RunState

if TYPE_CHECKING:
    from datetime import datetime

    from orchestrator.fleet.board import Fleet
    from orchestrator.fleet.card import RunCard

TURN_LIMIT_S = 30.0  # a turn takes a fraction of a second
FRESH_S = 30.0
_UNSEEN = frozenset({RunState.BLIND, RunState.CONTAINER_STOPPED, RunState.CONTAINER_FROZEN})


@dataclass(frozen=True)
class Health:
    """`why`: what is wrong, each for people; empty if all is well."""

    why: tuple[str, ...] = ()

    @property
    def is_well(self) -> bool:
        """Whether the watch runs, sees every run that has not ended, and acts on each as far as it acts."""
        return not self.why


def health(
    fleet: Fleet, now: datetime, *, acting: bool, fault: Exception | None, turned_s_ago: float | None
) -> Health:
    """Return how the watch does; `turned_s_ago`: since its last turn, None before the first.

    `acting`: the watch acts, so that a run which it only looks at is not cared for as it should be.
    """
    why = [f"the watch ended: {fault}"] if fault is not None else []
    if fault is None and (turned_s_ago is None or turned_s_ago > TURN_LIMIT_S):
        turned = "has not turned yet" if turned_s_ago is None else f"has not turned for {turned_s_ago:.0f} s"
        why.append(f"the watch {turned}")
    unseen = [card for card in fleet.cards if not card.has_ended and not is_seen(card, now)]
    why += [f"{card.name} at {card.target} is not seen: {_why_unseen(card)}" for card in unseen]
    idle = [
        card for card in fleet.cards if acting and not (card.has_ended or card.is_acting or card in unseen)
    ]
    why += [f"{card.name} at {card.target} is {card.remark or 'only looked at'}" for card in idle]
    return Health(tuple(why))


def is_seen(card: RunCard, now: datetime) -> bool:
    """Whether what is shown of the run is of the present."""
    age_s = card.age_s(now)
    return card.blind is None and card.state not in _UNSEEN and age_s is not None and age_s <= FRESH_S


def _why_unseen(card: RunCard) -> str:
    if card.blind is not None:
        return card.blind
    return card.state.value if card.looked_at is not None else "no look yet"
