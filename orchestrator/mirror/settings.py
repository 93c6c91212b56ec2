"""Whether logs are mirrored, in how much room: mirror.yaml in the configuration folder, variables over it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from orchestrator import yamlfile
from orchestrator.errors import ConfigError
from orchestrator.mirror.quota import DEFAULT_RUN, DEFAULT_TOTAL, Limits
from orchestrator.sizes import ALLOWED, parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "mirror.yaml"
VARIABLES = {"quota": "DFLASHCTL_MIRROR_QUOTA", "run_quota": "DFLASHCTL_MIRROR_RUN_QUOTA"}
LEAST = 1 << 20


def _bytes(value: object) -> object:
    if isinstance(value, str):
        return parse_size(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"write {ALLOWED}")


Size = Annotated[int, BeforeValidator(_bytes), Field(ge=LEAST)]


class _MirrorModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    enabled: bool = True
    quota: Size = DEFAULT_TOTAL
    run_quota: Size = DEFAULT_RUN


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a value comes from: a variable, a line of the file, or neither."""

    variable: str | None = None
    path: str | None = None
    line: int | None = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything about the mirror; `origins` by key."""

    enabled: bool
    limits: Limits
    origins: Mapping[str, Origin]


def default_path(env: Mapping[str, str] | None = None) -> Path:
    """Return where the file is looked for."""
    env = os.environ if env is None else env
    return Path(env.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "dflashctl" / NAME


def load(env: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of the file, if there is one, with the environment's in the place of its own.

    Raises:
        ConfigError: The file or a variable is wrong.
    """
    env = os.environ if env is None else env
    path = default_path(env)
    origins = dict.fromkeys(_MirrorModel.model_fields, Origin())
    model = _MirrorModel()
    if path.is_file():
        document = yamlfile.read(path)
        if not isinstance(document.data, dict):
            raise ConfigError(f"{path}:1: not a mapping of keys to values", hint="begin with `quota: 2 GiB`")
        model = yamlfile.validate(_MirrorModel, document.data, document)
        for key in document.data:
            origins[key] = Origin(path=str(path), line=document.line((key,)))
    sizes = {"quota": model.quota, "run_quota": model.run_quota}
    for key, variable in VARIABLES.items():
        if text := env.get(variable, "").strip():
            sizes[key] = _of_variable(variable, text)
            origins[key] = Origin(variable=variable)
    limits = Limits(total=sizes["quota"], run=sizes["run_quota"])
    return Settings(enabled=model.enabled, limits=limits, origins=origins)


def _of_variable(name: str, text: str) -> int:
    try:
        size = parse_size(text)
    except ValueError as cause:
        raise ConfigError(f"{name}: {cause}") from cause
    if size < LEAST:
        raise ConfigError(f"{name}: {text!r} is less than 1 MiB", hint="`watch --no-mirror` keeps no copy")
    return size
