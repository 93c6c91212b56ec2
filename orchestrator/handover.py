"""A relaunch that a person asked for, as the run's stop.json keeps it from the stop until the start. Pure.

Whoever is killed between the two leaves it there, and whoever watches the run then finishes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConfigError
from orchestrator.launch import RunSpec, spec_document, spec_from_document

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class Handover:
    """What is to be started in the place of what was stopped; `at` is that stop's, and names it."""

    at: str
    spec: RunSpec
    reason: str
    changes: Mapping[str, str] = field(default_factory=dict)
    actor: Mapping[str, Any] = field(default_factory=dict)


def then_document(
    spec: RunSpec,
    *,
    state_dir: str,
    attempt: int,
    reason: str,
    changes: Mapping[str, str],
    actor: Mapping[str, Any],
) -> dict[str, Any]:
    """Return `then` of the request to stop: what follows, and who is about to start it."""
    return {
        "spec": spec_document(spec, state_dir=state_dir, attempt=attempt, created_at=""),
        "reason": reason,
        "changes": dict(changes),
        "actor": dict(actor),
    }


def handover_of(stop: Mapping[str, Any] | None) -> Handover | None:
    """Return what stop.json says is to follow; None if it says nothing of the kind.

    Raises:
        ConfigError: It is not ours.
    """
    then = (stop or {}).get("then")
    if stop is None or not isinstance(then, dict):
        return None
    spec, changes, actor = then.get("spec"), then.get("changes"), then.get("actor")
    if not isinstance(spec, dict):
        raise ConfigError("stop.json: then.spec: no spec")
    return Handover(
        at=str(stop.get("at")),
        spec=spec_from_document(spec),
        reason=str(then.get("reason") or "relaunched by its user"),
        changes={str(k): str(v) for k, v in changes.items()} if isinstance(changes, dict) else {},
        actor=actor if isinstance(actor, dict) else {},
    )
