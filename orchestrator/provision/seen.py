"""What is there, as one look at the container told it. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

_DIGITS = re.compile(r"\d+(?:\.\d+)*")


@dataclass(frozen=True, kw_only=True)
class VenvSeen:
    """A whole environment: what was written of it, and what it has now (None: its Python does not run)."""

    packages: Mapping[str, str]
    now: Mapping[str, str] | None


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One look. A program that is not there has no entry."""

    uid: int | None = None
    machine: str | None = None
    glibc: str | None = None
    has_apt: bool = False
    free_bytes: int | None = None
    python: str | None = None  # the guest's Python, `3.11.2`
    programs: Mapping[str, str] = field(default_factory=dict)  # name -> what it says of its version
    modules: frozenset[str] = frozenset()
    packages: frozenset[str] = frozenset()  # of Debian
    venvs: Mapping[str, VenvSeen] = field(default_factory=dict)
    current: str | None = None  # the key that `<state>/venv` names
    has_trainer: bool = False
    commands: Mapping[str, bool] = field(default_factory=dict)  # step -> its check's command ended with 0

    @property
    def minor(self) -> str | None:
        """The Python's `3.11`."""
        return ".".join(self.python.split(".")[:2]) if self.python else None


def parse_seen(text: str) -> Seen:
    """Return what the lines of the look say; a line that is not understood counts as not there."""
    one: dict[str, str] = {}
    many: dict[str, dict[str, str]] = {"program": {}, "module": {}, "package": {}, "stamp": {}, "has": {}}
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word in many:
            name, _, value = rest.partition(" ")
            many[word][name] = value.strip()
        else:
            one[word] = rest.strip()
    return Seen(
        uid=_int(one.get("uid")),
        machine=one_line(one.get("machine", ""), 40) or None,
        glibc=_version(one.get("glibc")),
        has_apt=bool(one.get("apt")),
        free_bytes=_kib(one.get("free")),
        python=_version(one.get("python")),
        programs={name: one_line(said, 80) for name, said in many["program"].items() if said},
        modules=frozenset(many["module"]),
        packages=frozenset(name for name, said in many["package"].items() if said.startswith("ii")),
        venvs=_venvs(many["stamp"], many["has"]),
        current=one.get("current", "").rpartition("/")[2] or None,
        has_trainer=one.get("trainer") == "yes",
    )


def version_numbers(text: str | None) -> tuple[int, ...]:
    """Return the first version in a text: `tmux 3.3a` gives (3, 3); () without one."""
    found = _DIGITS.search(text or "")
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def _venvs(stamps: Mapping[str, str], now: Mapping[str, str]) -> dict[str, VenvSeen]:
    found = {}
    for key, said in stamps.items():
        packages = _object(said).get("packages")
        if isinstance(packages, dict):
            there = _object(now.get(key, ""))
            found[key] = VenvSeen(packages=packages, now=there or None)
    return found


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _kib(text: str | None) -> int | None:
    kib = _int(text)
    return kib << 10 if kib is not None else None


def _version(text: str | None) -> str | None:
    found = _DIGITS.search(text or "")
    return found.group() if found else None
