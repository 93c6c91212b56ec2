"""How an attempt was seen to stand still, for the far side to compare before it ends it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.types.seen import Phase, Present

if TYPE_CHECKING:
    from orchestrator.observe.attempt import AttemptView

# Where printing is progress, as it is for a program that tells no phase at all.
_PRINTS = frozenset({Phase.INIT, Phase.LOAD})


def standstill(view: AttemptView) -> dict[str, object]:
    """Return `unless_moved` of the guest's `stop`; what is null is not compared."""
    beat = view.heartbeat.value if isinstance(view.heartbeat, Present) else None
    prints = beat is None or beat.phase in _PRINTS
    return {
        "phase": beat.phase.value if beat is not None else None,
        "step": beat.step if beat is not None else None,
        "metrics_offset": view.metrics_offset,
        "log_offset": view.log_offset if prints else None,
    }
