"""Who is told, and when: notify.yaml in the user's configuration folder, and the environment over it.

The file holds secrets, so that it must be the user's alone, and no error about it shows a value of theirs.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass, field
from datetime import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from orchestrator import yamlfile
from orchestrator.durations import ALLOWED, parse_duration
from orchestrator.errors import ConfigError
from orchestrator.notify.message import SEVERITIES, Kind, Severity
from orchestrator.notify.policy import QuietHours, Rate

if TYPE_CHECKING:
    from collections.abc import Mapping

URLS = "DFLASHCTL_NOTIFY_URLS"
DEADMAN_URL = "DFLASHCTL_DEADMAN_URL"
NAME = "notify.yaml"
_MINUTES_A_DAY = 1440
_OTHERS = 0o077
_BETWEEN = re.compile(r"\s+|,\s*(?=[a-zA-Z][\w+.-]*://)")


def _seconds(value: object) -> object:
    if isinstance(value, str):
        return parse_duration(value)
    raise ValueError(f"write {ALLOWED}")


def _clock(value: object) -> object:
    """YAML 1.1 takes an unquoted 22:00 for the number of its minutes."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MINUTES_A_DAY:
        return time(value // 60, value % 60)
    if isinstance(value, str) and re.fullmatch(r"([01]?\d|2[0-3]):[0-5]\d", value):
        return time.fromisoformat(value.rjust(5, "0"))
    raise ValueError("write a time of the day, such as 22:00")


def _off(value: object) -> object:
    return "off" if value is False else value  # an unquoted `off` is a truth value in YAML 1.1


Duration = Annotated[float, BeforeValidator(_seconds), Field(gt=0)]
Clock = Annotated[time, BeforeValidator(_clock)]
Level = Literal["info", "warning", "error", "urgent"]
LevelOrOff = Annotated[Literal["info", "warning", "error", "urgent", "off"], BeforeValidator(_off)]
Told = Literal["death", "hang", "needs_person", "prediction", "recovered", "finished", "blind", "seen_again"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _RateModel(_Model):
    messages: Annotated[int, Field(ge=1, le=1000)] = 10
    per: Duration = 600.0


class _QuietModel(_Model):
    begin: Clock = Field(alias="from")
    end: Clock = Field(alias="to")
    passes: Level = "urgent"


class _NotifyModel(_Model):
    rate: _RateModel = _RateModel()
    quiet: _QuietModel | None = None
    severity: dict[Told, LevelOrOff] = {}
    blind_after: Duration = 600.0
    deadman_every: Duration = 60.0


@dataclass(frozen=True)
class Address:
    """A URL, which is a secret, and where it is written."""

    secret: str = field(repr=False)
    origin: str


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything about messages; durations in seconds."""

    addresses: tuple[Address, ...] = ()
    deadman: Address | None = None
    deadman_every_s: float = 60.0
    rate: Rate = field(default_factory=Rate)
    quiet: QuietHours | None = None
    severity: Mapping[Kind, Severity | None] = field(default_factory=dict)
    blind_after_s: float = 600.0
    source: str | None = None

    @property
    def is_on(self) -> bool:
        """Whether anybody is told anything."""
        return bool(self.addresses) or self.deadman is not None

    def severity_of(self, kind: Kind) -> Severity | None:
        """Return what a kind of message counts as; None if it is not sent."""
        return self.severity.get(kind, SEVERITIES[kind])


def default_path(env: Mapping[str, str] | None = None) -> Path:
    """Return where the file is looked for."""
    env = os.environ if env is None else env
    return Path(env.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "dflashctl" / NAME


def load(env: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of the file, if there is one, with the environment's URLs in the place of its own.

    Raises:
        ConfigError: Others may read the file, or it is wrong; no URL is in the message.
    """
    env = os.environ if env is None else env
    path = default_path(env)
    settings = _read(path) if _is_ours_alone(path) else Settings()
    changes: dict[str, Any] = {}
    if given := [part for part in _BETWEEN.split(env.get(URLS, "").strip()) if part]:
        changes["addresses"] = tuple(Address(url, f"{URLS} no. {n}") for n, url in enumerate(given, 1))
    if url := env.get(DEADMAN_URL, "").strip():
        changes["deadman"] = _deadman(url, DEADMAN_URL)
    return Settings(**{**settings.__dict__, **changes})


def _read(path: Path) -> Settings:
    document = yamlfile.read(path)
    if not isinstance(document.data, dict):
        raise ConfigError(f"{path}:1: not a mapping of keys to values", hint=f"begin with `{_KEYS[0]}:`")
    # What may hold a secret is checked here: the errors of the model show the value that is wrong.
    data = dict(document.data)
    _check_keys(data, document)
    addresses = _addresses(data.pop("urls", None), document)
    url = data.pop("deadman_url", None)
    deadman = _deadman(url, _origin(document, ("deadman_url",))) if url is not None else None
    model = yamlfile.validate(_NotifyModel, data, document)
    quiet = model.quiet
    return Settings(
        addresses=addresses,
        deadman=deadman,
        deadman_every_s=model.deadman_every,
        rate=Rate(model.rate.messages, model.rate.per),
        quiet=QuietHours(quiet.begin, quiet.end, Severity[quiet.passes.upper()]) if quiet else None,
        severity={
            Kind(kind): None if level == "off" else Severity[level.upper()]
            for kind, level in model.severity.items()
        },
        blind_after_s=model.blind_after,
        source=str(path),
    )


_KEYS = ("urls", "deadman_url", *_NotifyModel.model_fields)


def _is_ours_alone(path: Path) -> bool:
    """Whether the file is there; one that others may read is refused."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as cause:
        raise ConfigError(f"{path}: cannot be read: {cause.strerror}") from cause
    if mode & _OTHERS:
        raise ConfigError(
            f"{path}: others may read it (mode {mode & 0o777:04o}), and it holds secrets",
            hint=f"`chmod 600 {path}`",
        )
    return True


def _check_keys(data: Mapping[Any, object], document: yamlfile.Document) -> None:
    for key in data:
        if key in _KEYS:
            continue
        near = difflib.get_close_matches(str(key), _KEYS, n=1)
        guess = f'; did you mean "{near[0]}"?' if near else ""
        place = (str(key),)
        # A list of URLs without a key above it reads as a key: not even that is shown unless it is a word.
        where = document.where(place) if re.fullmatch(r"\w{1,30}", str(key)) else _origin(document, place)
        raise ConfigError(f"{where}: unknown key{guess}; allowed: {', '.join(_KEYS)}")


def _addresses(value: object, document: yamlfile.Document) -> tuple[Address, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        where = document.where(("urls",))
        raise ConfigError(f"{where}: not a list", hint="write each URL on a line, after `- `")
    for number, item in enumerate(value):
        if not isinstance(item, str):
            raise ConfigError(f"{document.where(('urls', str(number)))}: not a text", hint="quote the URL")
    origins = [_origin(document, ("urls", str(number))) for number in range(len(value))]
    if len(set(origins)) < len(origins):  # several on a line
        origins = [f"{origin} no. {number}" for number, origin in enumerate(origins, 1)]
    return tuple(Address(item.strip(), origin) for item, origin in zip(value, origins, strict=True))


def _origin(document: yamlfile.Document, place: tuple[str, ...]) -> str:
    return f"{NAME}:{document.line(place)}"


def _deadman(url: object, origin: str) -> Address:
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        is_url = parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_url = False
    if not is_url:
        raise ConfigError(f"{origin}: no URL that can be pinged", hint="it begins with https:// or http://")
    return Address(str(url), origin)
