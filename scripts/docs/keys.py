"""The reference of a playbook: what playbooks/README.md says of each key, and what the schema takes."""

from __future__ import annotations

from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, MaxLen, MinLen
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from orchestrator.durations import ALLOWED
from orchestrator.playbookfile import (
    BoundsModel,
    CustomModel,
    Duration,
    LimitsModel,
    LoopModel,
    PlaybookModel,
    RuleModel,
    RungModel,
    Size,
)
from orchestrator.types.failure import FailureClass
from scripts.docs.included import read
from scripts.docs.text import cell, code, page, table

SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("The file", PlaybookModel),
    ("`rules`, each", RuleModel),
    ("`ladder`, each rung", RungModel),
    ("`custom`, each, beside the keys of a rule", CustomModel),
    ("`allow`, each key", BoundsModel),
    ("`limits`", LimitsModel),
    ("`crash_loop`", LoopModel),
)
_ABOUT = (
    "What a file is held against when it is read, from the schema itself. Every key but `act`, `why` and "
    "those of `custom` may be left out; one that is not here is an error with file and line. "
    f"A duration is {ALLOWED}."
)
_WORDS = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}


def pages() -> dict[str, str]:
    """Return the page by its path."""
    return {"playbook-keys.md": _page()}


def _page() -> str:
    parts = [f"### {title}\n\n{table(('key', 'takes'), _rows(model))}" for title, model in SECTIONS]
    return page(read("playbooks/README.md").rstrip(), "## What each key takes", _ABOUT, *parts)


def keys_of(model: type[BaseModel]) -> dict[str, str]:
    """Return what each key of a part of the file takes, in words; those of a rule are told once."""
    hints = get_type_hints(model, include_extras=True)
    inherited = RuleModel.model_fields.keys() if model is CustomModel else ()
    return {
        field.alias or name: _takes(hints[name], field)
        for name, field in model.model_fields.items()
        if name not in inherited
    }


def _rows(model: type[BaseModel]) -> list[list[str]]:
    return [[code(key), cell(text)] for key, text in keys_of(model).items()]


def _takes(hint: Any, field: FieldInfo) -> str:  # noqa: ANN401
    return (field.description or _words(hint)).replace(ALLOWED, "a duration")


def _words(hint: Any) -> str:  # noqa: ANN401 - any type that a model may name
    if hint == Duration:
        return ALLOWED
    if hint == Size:
        return "bytes, or 512 MiB"
    parts = [each for each in get_args(hint) if each is not NoneType]
    origin = get_origin(hint)
    if hasattr(hint, "__metadata__"):
        return _annotated(hint)
    if origin is Literal:
        return ", ".join(map(str, parts))
    if origin is dict:
        return f"key: {_words(parts[1])}"
    if origin is list:
        return f"a list, each {_words(parts[0])}"
    if len(parts) == 1:  # that or nothing
        return _words(parts[0])
    if hint is FailureClass:
        return "a failure class"
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return f"{{{', '.join(hint.model_fields)}}}"
    return _WORDS[hint]


def _annotated(hint: Any) -> str:  # noqa: ANN401
    told = [
        each.description for each in hint.__metadata__ if isinstance(each, FieldInfo) and each.description
    ]
    if told:
        return str(told[-1])
    if any(isinstance(each, BeforeValidator) for each in hint.__metadata__) and hint.__origin__ is str:
        return "a single value: a text, a number, true or false"
    return _words(hint.__origin__) + _bounds(hint)


def _bounds(hint: Any) -> str:  # noqa: ANN401
    bounds = [each for info in hint.__metadata__ if isinstance(info, FieldInfo) for each in info.metadata]
    said = {Ge: "at least", Gt: "over", Le: "at most", MinLen: "at least", MaxLen: "at most"}
    values = [f"{said[type(each)]} {_bound(each)}" for each in bounds if type(each) in said]
    return f", {' and '.join(values)}" if values else ""


def _bound(each: Any) -> str:  # noqa: ANN401
    names = ("ge", "gt", "le", "min_length", "max_length")
    return str(next(getattr(each, name) for name in names if hasattr(each, name)))
