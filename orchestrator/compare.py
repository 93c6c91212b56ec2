"""What differs between two attempts, most suspicious first. Pure: from environment.json and run.json alone.

A missing key and a null are the same, as everywhere on disk.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

MAX_DEPTH = 12
MAX_KEYS = 20_000

Scalar: TypeAlias = "str | int | float | bool | None"
Flat: TypeAlias = "dict[str, Scalar]"

# By how often it was the cause when the same configuration suddenly no longer ran.
GROUPS = (
    "torch build",
    "CUDA",
    "driver",
    "GPUs",
    "packages",
    "compile cache",
    "code",
    "configuration",
    "data",
    "environment names",
    "machine",
    "other",
)
# The first pattern that a key of environment.json or of run.json matches says its group; None: says nothing.
_GROUP_OF: tuple[tuple[str, str | None], ...] = (
    # Every attempt leaves more in the compile cache; that it is gone, or has other artifacts, says something.
    (r"environment\.(schema|at|argv|compile_cache\.(files|bytes|sha256)).*", None),
    (r"environment\.torch_build\.(cudnn|nccl)", "CUDA"),
    (r"environment\.(cuda|packages\.nvidia-.*)", "CUDA"),
    (r"environment\.(torch|torch_build\..*|wheels\.torch)", "torch build"),
    (r"environment\.driver", "driver"),
    (r"(environment|run)\.gpus(\..*)?", "GPUs"),
    (r"environment\.(packages|wheels)\..*", "packages"),
    (r"environment\.compile_cache\..*", "compile cache"),
    (r"environment\.code\..*|run\.trainer_sha256", "code"),
    (r"(environment|run)\.(config|overrides)(\..*)?|run\.(config_toml|inject|command|own_checkpoint_dir)(\..*)?",
     "configuration"),
    (r"environment\.(corpus_sha256|target_sha256|data)(\..*)?", "data"),
    (r"(environment|run)\.env_names\..*", "environment names"),
    (r"environment\.(python|executable|platform|kernel|cpu|cpu_threads)(\..*)?|run\.python", "machine"),
    (r"run\..*", None),
)  # fmt: skip
_PATTERNS = tuple((re.compile(pattern), group) for pattern, group in _GROUP_OF)
_NAMES = ("env_names",)  # lists whose order says nothing: compared by member


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What an attempt left. `made_progress`: it finished, or trained at least one step."""

    run: str
    number: int
    environment: Mapping[str, Any] | None
    spec: Mapping[str, Any] | None
    made_progress: bool = False

    @property
    def label(self) -> str:
        """As a person types it."""
        return f"{self.run}/{self.number}"


@dataclass(frozen=True, kw_only=True)
class Change:
    """One difference; None where a side does not have it."""

    group: str
    key: str
    old: Scalar
    new: Scalar


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The differences, and what could not be compared."""

    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()


def compare(old: Attempt, new: Attempt) -> Comparison:
    """Return what differs from `old` to `new`, grouped as GROUPS are ordered."""
    has_both = old.environment is not None and new.environment is not None
    before, after = _flat(old, has_both=has_both), _flat(new, has_both=has_both)
    changes = [
        Change(group=group, key=_shown(key), old=before.get(key), new=after.get(key))
        for key in before.keys() | after.keys()
        if before.get(key) != after.get(key) and (group := group_of(key)) is not None
    ]
    changes.sort(key=lambda change: (GROUPS.index(change.group), _rank(change.key), change.key))
    return Comparison(changes=tuple(changes), notes=tuple(_notes(old, new)))


def group_of(key: str) -> str | None:
    """Return the group of a flat key; None for what differs between any two attempts."""
    return next((group for pattern, group in _PATTERNS if pattern.fullmatch(key)), "other")


def _rank(key: str) -> int:
    """The version and the sum before the parts."""
    return 0 if key in ("torch", "cuda", "code.sha256", "compile_cache.present") else 1


def _shown(key: str) -> str:
    origin, _, rest = key.partition(".")
    return f"asked {rest}" if origin == "run" else rest


def _flat(attempt: Attempt, *, has_both: bool) -> Flat:
    found: Flat = {}
    spec = dict(attempt.spec or {})
    if has_both:
        # The trainer tells the same better: the configuration as it was read, every name that was set.
        for key in ("config_toml", "overrides", "env_names"):
            spec.pop(key, None)
    elif isinstance(spec.get("config_toml"), str):
        spec["config_toml"] = dict.fromkeys(_lines(spec["config_toml"]), "set")
    for origin, document in (("environment", attempt.environment if has_both else {}), ("run", spec)):
        for key, value in (document or {}).items():
            _flatten(f"{origin}.{key}", value, found, 0)
    return found


def _lines(text: str) -> Iterable[str]:
    return (line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))


def _flatten(key: str, value: Any, found: Flat, depth: int) -> None:  # noqa: ANN401 - any JSON
    if value is None or len(found) >= MAX_KEYS:
        return
    if isinstance(value, Mapping) and depth < MAX_DEPTH:
        for name, item in value.items():
            _flatten(f"{key}.{name}", item, found, depth + 1)
    elif isinstance(value, list) and key.rsplit(".", 1)[-1] in _NAMES:
        found.update({f"{key}.{name}": "set" for name in value})
    elif isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
        for index, item in enumerate(value):
            _flatten(f"{key}.{index}", item, found, depth + 1)
    elif isinstance(value, (str, int, float, bool)):
        found[key] = value
    else:
        found[key] = json.dumps(value, sort_keys=True)


def _notes(old: Attempt, new: Attempt) -> Iterable[str]:
    for attempt in (old, new):
        if attempt.environment is None:
            yield f"{attempt.label} left no environment.json: only what was asked for is compared"
        if attempt.spec is None:
            yield f"{attempt.label} has no run.json"


def choose(attempts: Mapping[int, Attempt], newest: int | None = None) -> tuple[Attempt, Attempt] | None:
    """Return the last attempt that made progress before `newest` (default: the newest), and that one.

    Without one that made progress it is the one before; None if there is none before.
    """
    numbers = sorted(attempts)
    end = newest if newest is not None else (numbers[-1] if numbers else 0)
    earlier = [number for number in numbers if number < end]
    if end not in attempts or not earlier:
        return None
    good = [number for number in earlier if attempts[number].made_progress]
    return attempts[(good or earlier)[-1]], attempts[end]


def progressed(heartbeat: Mapping[str, Any] | None, *, has_result: bool) -> bool:
    """Whether an attempt finished or took a step of its own, by its last heartbeat."""
    if has_result:
        return True
    step, begun = (heartbeat or {}).get("step"), (heartbeat or {}).get("resumed_from_step")
    first = begun if isinstance(begun, int) else 0
    return isinstance(step, int) and step > first
