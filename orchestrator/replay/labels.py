"""The labels of a folder of logs: what each one really was. One JSON object a line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.errors import ConfigError, NotFound
from orchestrator.terminal import one_line
from orchestrator.types.failure import FailureClass  # noqa: TC001 - pydantic reads it
from orchestrator.userfile import read_text

if TYPE_CHECKING:
    from pathlib import Path

INDEX = "index.jsonl"


class Label(BaseModel):
    """One log and what it really was; keys that are not known are left alone.

    `failure` (`class` in the file) is the right answer, `also` are others that an honest reader may give.
    `root_cause_line` in parentheses says that the line is not to be seen.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)

    id: str
    file: str
    failure: Annotated[FailureClass, Field(alias="class")]
    root_cause_line: str = ""
    exit_status: int | None = None
    width: Annotated[int, Field(ge=20)] | None = None
    ambiguous: bool = False
    also: tuple[FailureClass, ...] = ()

    @property
    def has_line(self) -> bool:
        """The line that proves it can be seen."""
        return bool(self.root_cause_line) and not self.root_cause_line.startswith("(")

    def accepts(self, failure: FailureClass) -> bool:
        """Whether that answer is right."""
        return failure is self.failure or failure in self.also


def read_labels(path: Path) -> list[Label]:
    """Return the labels of an index file.

    Raises:
        NotFound: There is no such file.
        ConfigError: It cannot be read or a line of it is wrong; names file, line, key and value.
    """
    name = one_line(str(path))
    try:
        lines = read_text(path, limit=64 << 20).splitlines()
    except FileNotFoundError as error:
        raise NotFound(f"{name}: no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: cannot be read: {error}") from error
    labels = [_label(line, f"{name}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not labels:
        raise ConfigError(f"{name}: no label in it", hint='a line is {"id", "file", "class", ...}')
    return labels


def _label(line: str, where: str) -> Label:
    try:
        return Label.model_validate(json.loads(line))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(map(str, problem["loc"]))
        raise ConfigError(f"{where}: {key}: {problem['msg']}, not {problem['input']!r}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: no JSON object: {error}") from error
