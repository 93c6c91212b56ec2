"""No secret in what everybody can read: a command line, a setting, a configuration."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError
from orchestrator.masking import Masker, secret_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.launch import RunSpec

MIN_TOLD_CHARS = 8  # a shorter value of a variable may stand in a command by chance


def check_secrets(spec: RunSpec, env: Mapping[str, str]) -> None:
    """Refuse a secret in what is run or configured: `ps`, run.json and the record show that to everybody.

    Raises:
        ConfigError: There is one; its value is not shown.
    """
    shapes = Masker()
    by_name = {
        name: Masker(found)
        for name, value in env.items()
        if len(value) >= MIN_TOLD_CHARS and (found := secret_values({name: value}, spec.mask))
    }
    for where, text in _told(spec):
        named = next((name for name, masker in by_name.items() if masker.text(text) != text), None)
        if named is None and shapes.text(text) == text:
            continue
        what = f"the value of {named}" if named else "what looks like a secret"
        raise ConfigError(
            f"{where}: it holds {what}, and everybody here and there can read it",
            hint="export it, give --env NAME, and let the program read that variable",
        )


def _told(spec: RunSpec) -> list[tuple[str, str]]:
    """Return where and what the spec says."""
    told = [("-- COMMAND", text) for text in _with_flags(spec.command)]
    told += [(f"--set {key}", f"{key}={value}") for key, value in spec.overrides]
    lines = (spec.config_toml or "").splitlines()
    return [*told, *((f"--config {spec.config}: line {n}", line) for n, line in enumerate(lines, 1))]


def _with_flags(words: Sequence[str]) -> list[str]:
    """Return the words, and each value with the flag before it: `--api-key abc` is `--api-key=abc`."""
    pairs = pairwise(words)
    return [*words, *(f"{flag}={word}" for flag, word in pairs if flag[:1] == "-" != word[:1])]
