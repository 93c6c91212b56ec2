"""Rules of the user's own: what a line looks like, what it is, and what to do when an attempt died of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.errors import PlaybookError
from orchestrator.pattern import Pattern
from orchestrator.types.failure import FailureClass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orchestrator.playbook import Rule
    from orchestrator.playbookfile import CustomModel, RuleModel
    from orchestrator.yamlfile import Document


@dataclass(frozen=True, kw_only=True)
class CustomRule:
    """A rule of the user's own. It says of a death what it was; it never makes a living run dead.

    Without a `failure` the class stays what the catalogue finds.
    """

    name: str
    pattern: Pattern
    label: str
    failure: FailureClass | None
    rule: Rule


def build(
    models: Sequence[CustomModel], document: Document, make: Callable[[FailureClass, RuleModel], Rule]
) -> tuple[CustomRule, ...]:
    """Return the rules of one file, in its order; the first that matches decides.

    Raises:
        PlaybookError: Two have the same name.
    """
    found: dict[str, CustomRule] = {}
    for place, model in enumerate(models):
        if model.name in found:
            where = document.where(("custom", str(place), "name"))
            raise PlaybookError(f'{where}: "{model.name}" is given twice', hint="give each its own name")
        found[model.name] = CustomRule(
            name=model.name,
            pattern=Pattern(model.regex),
            label=model.label or model.name.replace("_", " "),
            failure=model.failure,
            rule=replace(make(model.failure or FailureClass.UNKNOWN, model), name=model.name),
        )
    return tuple(found.values())
