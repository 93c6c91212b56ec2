"""A lock: the versions that pip may install, and the key of what comes of it. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14", "3.15", "3.16")
KEY_DIGITS = 16
_LINE = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^;\s]+)(?:\s*;\s*python_version == \"(?P<python>[\d.]+)\")?"
)


@dataclass(frozen=True)
class Pin:
    """A package's version; `python` None: for every Python."""

    name: str
    version: str
    python: str | None


@dataclass(frozen=True)
class Lock:
    """The pins of a file, and its text as pip gets it."""

    text: str
    pins: tuple[Pin, ...]

    def version(self, name: str, python: str) -> str | None:
        """Return the version of a package for a Python such as `3.11`."""
        wanted = canonical(name)
        fit = (pin for pin in self.pins if canonical(pin.name) == wanted and pin.python in (None, python))
        return next((pin.version for pin in fit), None)


def canonical(name: str) -> str:
    """Return a package's name as indexes compare it, without its extras and version."""
    bare = re.split(r"[\[<>=!~ ]", name, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", bare).lower()


def parse_lock(text: str, where: str) -> Lock:
    """Return the lock of a file's text.

    Raises:
        ConfigError: A line is no exact pin.
    """
    pins = []
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.partition("#")[0].strip()
        if not stripped:
            continue
        match = _LINE.fullmatch(stripped)
        if match is None:
            raise ConfigError(
                f"{where}:{number}: {stripped[:80]!r} is no pin",
                hint='write name==version, or name==version; python_version == "3.11"',
            )
        pins.append(Pin(match["name"], match["version"], match["python"]))
    return Lock("".join(f"{line}\n" for line in text.splitlines()), tuple(pins))


def key_of(lock: Lock, requirements: Sequence[str], imports: Sequence[str], source: str, python: str) -> str:
    """Return what names the environment: equal contents have equal keys, whoever asks for them."""
    body = json.dumps([lock.text, list(requirements), list(imports), source, python])
    return hashlib.sha256(body.encode()).hexdigest()[:KEY_DIGITS]
