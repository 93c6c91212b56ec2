"""Which environment variables hold secrets, by their names. Pure."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# The last pattern that matches decides; one that begins with `!` says that it is no secret.
DEFAULT_NAMES = (
    "*TOKEN*",
    "*SECRET*",
    "*PASSWORD*",
    "*PASSWD*",
    "*PASSPHRASE*",
    "*_PASS",
    "*_PWD",
    "*KEY",
    "*_KEY_*",
    "*APIKEY*",
    "*CREDENTIAL*",
    "*_AUTH",
    "*_PAT",
    "*_DSN",
    "*WEBHOOK*",
    "!TOKENIZERS_*",
    "!*TOKENIZER*",
    "!*_TOKENS",
    "!*_TOKEN_ID",
)
# Shorter ones are words like `true` and `12`: masking them would make every other line unreadable.
MIN_VALUE_CHARS = 6
_WORDS = frozenset({"default", "disable", "disabled", "enable", "enabled", "offline", "online"})


def is_secret_name(name: str, extra: Iterable[str] = ()) -> bool:
    """Whether a variable of this name holds a secret, by DEFAULT_NAMES and then the patterns of `extra`."""
    found = False
    upper = name.upper()
    for pattern in (*DEFAULT_NAMES, *extra):
        if fnmatchcase(upper, pattern.removeprefix("!").upper()):
            found = not pattern.startswith("!")
    return found


def secret_values(env: Mapping[str, str], extra: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the values in `env` that are secrets, each once."""
    patterns = tuple(extra)
    found = [value for name, value in env.items() if is_secret_name(name, patterns) and _is_telling(value)]
    return tuple(dict.fromkeys(found))


def _is_telling(value: str) -> bool:
    return len(value.strip()) >= MIN_VALUE_CHARS and value.strip().lower() not in _WORDS
