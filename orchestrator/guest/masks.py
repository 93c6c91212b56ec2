"""The secrets of a run, by its `env` file: masked in all that it says before that leaves the container."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator import wire
from orchestrator.guest import files
from orchestrator.masking import Masker, secret_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.guest.paths import RunDir

FORMER = "former-secrets"
MAX_FORMER = 200


@dataclass
class RunMasks:
    """One run's masker, made anew when what it is made of changes."""

    run: RunDir
    _stamps: tuple[files.Stamp | None, ...] | None = None
    _masker: Masker = field(default_factory=Masker)

    def current(self) -> Masker:
        """Return the masker of now: for the values of this launch and of former ones, and the container's."""
        named = ("env", FORMER, "run.json")
        stamps = tuple(files.stamp(self.run.path / name) for name in named)
        if stamps != self._stamps:
            self._stamps = stamps
            self._masker = Masker(_values(self.run))
        return self._masker


def own() -> Masker:
    """Return a masker for what is of no run of ours: known shapes, and the container's own environment."""
    return Masker(secret_values(os.environ))


def keep_former(run: RunDir, env: Mapping[str, str]) -> None:
    """Before `env` replaces the run's: keep the secrets that go, older logs may hold them."""
    before, names = files.read_json(run.path / "env") or {}, _names(run)
    going = set(secret_values(_texts(before), names)) - set(secret_values(env, names))
    if going:
        kept = [*_former(run), *sorted(going - set(_former(run)))][-MAX_FORMER:]
        files.write_json(run.path / FORMER, {"schema": wire.SCHEMA, "values": kept}, mode=0o600)


def _values(run: RunDir) -> list[str]:
    env = _texts(files.read_json(run.path / "env") or {})
    return [*secret_values({**os.environ, **env}, _names(run)), *secret_values(os.environ), *_former(run)]


def _former(run: RunDir) -> list[str]:
    values = (files.read_json(run.path / FORMER) or {}).get("values")
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []


def _names(run: RunDir) -> tuple[str, ...]:
    """The patterns of names that the launch added to the usual ones."""
    names = (files.read_json(run.path / "run.json") or {}).get("mask")
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def _texts(env: Mapping[str, Any]) -> dict[str, str]:
    return {name: value for name, value in env.items() if isinstance(value, str)}
