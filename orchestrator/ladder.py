"""Which rung of a ladder comes next: the first one that changes something and is allowed to. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.playbook import Bounds, Rung


@dataclass(frozen=True, kw_only=True)
class Facts:
    """How the attempt was started, as far as it is known. `settings` are whole, or those that are known."""

    settings: Mapping[str, str] = field(default_factory=dict)
    env_names: frozenset[str] = frozenset()
    is_command: bool = False  # a command of the user's own takes no settings


@dataclass(frozen=True, kw_only=True)
class Climbed:
    """The next rung with what it changes; `place` is None if none is left; `passed` is what was not done."""

    place: int | None
    rung: Rung | None = None
    changes: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    passed: tuple[str, ...] = ()


def facts(spec: Mapping[str, Any] | None, environment: Mapping[str, Any] | None) -> Facts:
    """Return what run.json and environment.json tell; either may be missing or anything at all."""
    spec = spec or {}
    overrides, config = spec.get("overrides"), (environment or {}).get("config")
    told = {str(k): str(v) for k, v in overrides.items()} if isinstance(overrides, Mapping) else {}
    names = spec.get("env_names")
    return Facts(
        settings={**told, **_flat(config, "")},
        env_names=frozenset(map(str, names)) if isinstance(names, (list, tuple)) else frozenset(),
        is_command=spec.get("kind") == "command",
    )


def _flat(table: object, prefix: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in table.items() if isinstance(table, Mapping) else ():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        elif isinstance(value, bool):
            found[f"{prefix}{name}"] = "true" if value else "false"
        elif isinstance(value, (str, int, float)):
            found[f"{prefix}{name}"] = str(value)
    return found


def climb(ladder: tuple[Rung, ...], begin: int, allow: Mapping[str, Bounds], known: Facts) -> Climbed:
    """Return the first rung from `begin` on that is allowed and not done already."""
    passed: list[str] = []
    for place in range(begin, len(ladder)):
        rung = ladder[place]
        changes, refused = _changes(rung, allow, known)
        if refused:
            passed.append(f"rung {place + 1} is passed over: {'; '.join(refused)}")
            continue
        changed = tuple((key, value) for key, value in changes if not _is(known.settings.get(key), value))
        env = tuple((name, value) for name, value in rung.env if name not in known.env_names)
        kept = [f"{name} is set already" for name, _ in rung.env if name in known.env_names]
        is_empty = not (rung.keys or rung.env or rung.remedies)  # a relaunch as is, on purpose
        if is_empty or changed or env or rung.remedies:
            passed += kept
            return Climbed(place=place, rung=rung, changes=changed, env=env, passed=tuple(passed))
        done = [f"{key} is {value} already" for key, value in changes]
        passed.append(f"rung {place + 1} is passed over: {'; '.join(done + kept)}")
    return Climbed(place=None, passed=tuple(passed))


def _changes(
    rung: Rung, allow: Mapping[str, Bounds], known: Facts
) -> tuple[list[tuple[str, str]], list[str]]:
    """Return what a rung would set, and why it may not; one refusal refuses the rung."""
    if rung.keys and known.is_command:
        return [], [f"{', '.join(rung.keys)}: a command of your own takes no settings"]
    changes, refused = list(rung.changes), []
    for key, factor in rung.scales:
        text = known.settings.get(key)
        scaled = _scaled(text, factor)
        if text is None or scaled is None:
            refused.append(f"{key}: its value is not known" if text is None else f"{key}={text} is no number")
        elif scaled == "0":
            refused.append(f"{key}: nothing would be left of {text} times {factor:g}")
        else:
            changes.append((key, scaled))
    refused += [why for key, value in changes if (why := outside(key, value, allow))]
    unknown = [key for key in rung.keys if key not in allow and key not in dict(changes)]
    refused += [_not_allowed(key) for key in unknown]
    return changes, refused


def outside(key: str, value: str, allow: Mapping[str, Bounds]) -> str:
    """Return why the run's owner does not allow it; empty if it is allowed."""
    bounds = allow.get(key)
    if bounds is None:
        return _not_allowed(key)
    number = _number(value)
    if number is None and (bounds.minimum, bounds.maximum) != (None, None):
        return f"{key}={value} is no number, and the playbook allows {bounds.text}"
    if number is not None and (
        (bounds.minimum is not None and number < bounds.minimum)
        or (bounds.maximum is not None and number > bounds.maximum)
    ):
        return f"{key}={value} is outside what the playbook allows, {bounds.text}"
    return ""


def _not_allowed(key: str) -> str:
    return f"{key} may not be changed; `allow: {{{key}: {{}}}}` in the playbook would let it"


def _scaled(text: str | None, factor: float) -> str | None:
    """Return the value times the factor; what is written as a whole number stays one: 1.0 is none."""
    value = _number(text)
    if value is None:
        return None
    try:
        return str(int(int(text or "") * factor))
    except ValueError:
        return f"{value * factor:.12g}"


def _is(value: str | None, wanted: str) -> bool:
    """Whether the setting has that value already, however a number is written."""
    number = _number(value)
    return value == wanted or (number is not None and number == _number(wanted))


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text is not None else None
    except ValueError:
        return None
    return number if number is None or abs(number) < float("inf") else None
