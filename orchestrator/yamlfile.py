"""YAML files that an operator edits: read with line numbers, checked against a pydantic model.

Takes text, gives plain data and models, never touches anything but the one file it is asked to read. Errors
name file, line, key, value and what is allowed.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from orchestrator.errors import ConfigError
from orchestrator.masking import Masker
from orchestrator.userfile import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

M = TypeVar("M", bound=BaseModel)
MAX_BYTES = 1 << 20  # what is written by hand is a hundredth of it, and reading it takes ten seconds
_OF_PYTHON = re.compile(r"valid dictionary(?: or instance of \w+)?")
Place = tuple[str, ...]  # the keys that lead to a value; list positions as digits


@dataclass(frozen=True, kw_only=True)
class Document:
    """One parsed file: plain data, and the line (from 1) of every key and list item."""

    path: str
    data: Any
    lines: Mapping[Place, int]

    def line(self, place: Place) -> int:
        """Return the line of `place`, or of the nearest enclosing place that the file has."""
        for end in range(len(place), 0, -1):
            if place[:end] in self.lines:
                return self.lines[place[:end]]
        return 1

    def where(self, place: Place) -> str:
        """Return `file:line: key.path`, the beginning of every message."""
        return f"{self.path}:{self.line(place)}: {'.'.join(place)}" if place else f"{self.path}:1"


def parse(text: str, path: str, error: type[ConfigError] = ConfigError) -> Document:
    """Parse one YAML document; an empty one gives `{}`.

    Raises:
        ConfigError: Of the given class: not YAML, or a key given twice.
    """
    try:
        loader = yaml.SafeLoader(text)
    except yaml.reader.ReaderError as cause:
        at = text.count("\n", 0, cause.position) + 1
        what = f"the character U+{ord(text[cause.position]):04X} may not stand in a YAML file"
        raise error(f"{path}:{at}: not valid YAML: {what}", hint="remove it") from cause
    try:
        node = loader.get_single_node()
        lines: dict[Place, int] = {}
        if node is None:
            return Document(path=path, data={}, lines=lines)
        _number(node, (), lines, path, error)
        return Document(path=path, data=loader.construct_document(node), lines=lines)
    except yaml.MarkedYAMLError as cause:
        mark = cause.problem_mark or cause.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise error(f"{path}{line}: not valid YAML: {cause.problem or cause.context}") from cause
    except (yaml.YAMLError, ValueError, RecursionError) as cause:
        raise error(f"{path}: not valid YAML: {cause}") from cause
    finally:
        loader.dispose()


def read(path: Path, error: type[ConfigError] = ConfigError) -> Document:
    """Read and parse one file.

    Raises:
        ConfigError: Of the given class: the file cannot be read, or see `parse`.
    """
    try:
        text = read_text(path, limit=MAX_BYTES)
    except OSError as cause:
        raise error(f"{path}: cannot be read: {cause.strerror or cause}") from cause
    except UnicodeDecodeError as cause:
        raise error(f"{path}: not UTF-8 at byte {cause.start}", hint="save the file as UTF-8") from cause
    return parse(text, str(path), error)


def _number(
    node: yaml.Node, place: Place, lines: dict[Place, int], path: str, error: type[ConfigError]
) -> None:
    if isinstance(node, yaml.SequenceNode):
        for position, item in enumerate(node.value):
            inner = (*place, str(position))
            lines[inner] = item.start_mark.line + 1
            _number(item, inner, lines, path, error)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag.endswith(":merge"):
                continue
            inner = (*place, str(key.value))
            line = key.start_mark.line + 1
            if inner in lines:
                name = ".".join(inner)
                hint = f"it stands on line {lines[inner]} already; keep one"
                raise error(f"{path}:{line}: {name}: the key is given twice", hint=hint)
            lines[inner] = line
            _number(value, inner, lines, path, error)


def validate(
    model: type[M],
    data: object,
    document: Document,
    place: Place = (),
    error: type[ConfigError] = ConfigError,
) -> M:
    """Return `data`, which stands at `place` in the document, as a model.

    Raises:
        ConfigError: Of the given class, one line for each thing that is wrong.
    """
    try:
        return model.model_validate(data)
    except ValidationError as cause:
        problems = [_explain(model, problem, document, place) for problem in cause.errors(include_url=False)]
        raise error("\n".join(dict.fromkeys(problems))) from cause


def show(value: object, limit: int = 80) -> str:
    """Return a value as it may stand in a message: JSON, on one line, not too long, no secret in it."""
    text = Masker().text(json.dumps(value, ensure_ascii=True, default=str))
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _explain(model: type[BaseModel], problem: Mapping[str, Any], document: Document, place: Place) -> str:
    steps = tuple(str(step) for step in problem["loc"])
    full = _existing(document, place, steps)
    where = document.where(full)
    if problem["type"] == "extra_forbidden":
        allowed = _keys(_model_at(model, steps[:-1]))
        near = difflib.get_close_matches(steps[-1], allowed, n=1)
        guess = f'; did you mean "{near[0]}"?' if near else ""
        known = ", ".join(allowed)
        return f"{where}: unknown key with the value {show(problem['input'])}{guess}; allowed: {known}"
    if problem["type"] == "missing":
        return f'{where}: the key "{steps[-1]}" is missing{_meaning(model, steps)}'
    message = str(problem["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = _OF_PYTHON.sub("mapping of keys to values", message[:1].lower() + message[1:])
    return f"{where}: {show(problem['input'])} is not allowed: {message}{_meaning(model, steps)}"


def _existing(document: Document, place: Place, steps: Place) -> Place:
    """Return where the problem stands in the file; pydantic's path also names the branches of a union."""
    full = place
    for step in steps:
        if (*full, step) in document.lines:
            full = (*full, step)
    return full


def _model_at(model: type[BaseModel], steps: Place) -> type[BaseModel]:
    for step in steps:
        field = model.model_fields.get(step)
        inner = _models_in(field.annotation) if field else []
        if inner:
            model = inner[0]
    return model


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in getattr(annotation, "__args__", ()) for found in _models_in(part)]


def _keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items() if not field.frozen]


def _meaning(model: type[BaseModel], steps: Place) -> str:
    """Return what the field's own description says is allowed."""
    if not steps:
        return ""
    owner = _model_at(model, steps[:-1])
    named = [step for step in reversed(steps) if step in owner.model_fields]
    field = owner.model_fields[named[0]] if named else model.model_fields.get(steps[0])
    said = _description(field) if field is not None else None
    return f"; allowed: {said}" if said else ""


def _description(field: FieldInfo) -> str | None:
    """Return the field's own description; of one that may be left out it stands within the annotation."""
    if field.description:
        return field.description
    inner = (each for part in get_args(field.annotation) for each in getattr(part, "__metadata__", ()))
    return next(
        (each.description for each in inner if isinstance(each, FieldInfo) and each.description), None
    )
