"""Read a configuration: TOML file, then `--set key=value`, then checks. Every mistake is one line."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_type_hints

from trainer.config import Config
from trainer.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

# By name, since type checking for Python 3.10 would want tomli installed everywhere.
tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

T = TypeVar("T")
_NOUNS: dict[type[object], str] = {
    int: "a whole number",
    float: "a number",
    str: "a string",
    bool: "true or false",
}
BUNDLED = Path(__file__).parent / "configs"
STDIN, STDIN_NAME = "-", "standard input"


def load(name: str, overrides: list[str]) -> Config:
    """Read the config called `name` (a path, a bundled one, or `-` for stdin) and apply the overrides.

    Raises:
        ConfigInvalid: no such file, not TOML, an unknown key, a wrong type or a value out of range.
    """
    path = Path(STDIN_NAME) if name == STDIN else _find(name)
    table = _parse_text(path.name, sys.stdin.buffer.read()) if name == STDIN else _parse_file(path)
    for override in overrides:
        _apply(table, override)
    config = _build(Config, table, path.name, "")
    _check_together(config, path.name)
    return config


def _find(name: str) -> Path:
    for candidate in (Path(name), BUNDLED / name, BUNDLED / f"{name}.toml"):
        if candidate.is_file():
            return candidate
    bundled = ", ".join(sorted(path.name for path in BUNDLED.glob("*.toml")))
    raise ConfigInvalid(f"--config {name}: no such file; give a path, or one of the bundled {bundled}")


def _parse_file(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigInvalid(f"{path.name}: cannot be read: {error}; give a UTF-8 text file") from error
    return _parse_text(path.name, data)


def _parse_text(where: str, data: bytes) -> dict[str, Any]:
    try:
        table: dict[str, Any] = tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigInvalid(f"{where}: cannot be read: {error}; give a UTF-8 text file") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigInvalid(f"{where}: not TOML: {error}; correct that line") from error
    return table


def _apply(table: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigInvalid(f"--set {override}: not key=value; write for example optim.lr=3e-4")
    *parents, leaf = key.strip().split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise ConfigInvalid(
                f"--set {override}: {parent} is a value, not a table; see the bundled configs"
            )
    table[leaf] = _value(text.strip())


def _value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a bare word is a string: the shell has eaten the quotes


def _build(kind: type[T], table: dict[str, Any], where: str, prefix: str) -> T:
    fields = {field.name: field for field in dataclasses.fields(cast("Any", kind))}
    hints = get_type_hints(kind)
    for key in table:
        if key not in fields:
            close = difflib.get_close_matches(key, fields, n=1)
            guess = f"did you mean {close[0]}? " if close else ""
            raise ConfigInvalid(f"{where}: {prefix}{key}: unknown key; {guess}allowed: {', '.join(fields)}")
    values: dict[str, object] = {}
    for key, value in table.items():
        hint = hints[key]
        if not dataclasses.is_dataclass(hint):
            values[key] = _check(value, hint, fields[key].metadata, f"{where}: {prefix}{key}")
        elif isinstance(value, dict):
            values[key] = _build(cast("type[Any]", hint), value, where, f"{prefix}{key}.")
        else:
            raise ConfigInvalid(f"{where}: {prefix}{key}: {value!r} is not a table; allowed: [{key}]")
    return kind(**values)


def _check(value: object, hint: type[object], limits: Mapping[str, Any], where: str) -> object:
    if hint == tuple[int, ...]:
        return _check_list(value, limits, where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    allowed = _allowed(hint, limits)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ConfigInvalid(f"{where}: {value!r} is not {_NOUNS[hint]}; allowed: {allowed}")
    if "choices" in limits and value not in limits["choices"]:
        raise ConfigInvalid(f"{where}: {value!r} is not one of them; allowed: {allowed}")
    # Written so that a NaN, for which every comparison is false, is out of range.
    if isinstance(value, (int, float)) and "low" in limits and not limits["low"] <= value <= limits["high"]:
        raise ConfigInvalid(f"{where}: {value!r} is out of range; allowed: {allowed}")
    return value


def _check_list(value: object, limits: Mapping[str, Any], where: str) -> tuple[int, ...]:
    allowed = f"a list of whole numbers from {limits['low']} to {limits['high']}"
    if not isinstance(value, list):
        raise ConfigInvalid(f"{where}: {value!r} is not a list; allowed: {allowed}, as [1, 9]")
    for item in value:
        if not isinstance(item, int) or isinstance(item, bool) or not limits["low"] <= item <= limits["high"]:
            raise ConfigInvalid(f"{where}: {item!r} in it is not one of them; allowed: {allowed}")
    return tuple(value)


def _allowed(hint: type[object], limits: Mapping[str, Any]) -> str:
    if "choices" in limits:
        return ", ".join(limits["choices"])
    if "low" in limits:
        return f"{_NOUNS[hint]} from {limits['low']} to {limits['high']}"
    return _NOUNS[hint]


def _check_together(config: Config, where: str) -> None:
    decoded = config.eval.prompt_tokens + config.eval.new_tokens + config.draft.block_size
    if config.eval.prompts and decoded > config.data.context_tokens:
        raise ConfigInvalid(
            f"{where}: eval.prompt_tokens + eval.new_tokens + draft.block_size: {decoded} is over "
            f"data.context_tokens, {config.data.context_tokens}; allowed: at most that, the shape of decoding"
        )
    for name in ("intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"):
        if config.draft.init == "target" and (value := getattr(config.draft, name)):
            raise ConfigInvalid(
                f"{where}: draft.{name}: {value} is not the target's, which draft.init = target needs; "
                "allowed: 0"
            )
    if config.draft.block_size >= config.data.context_tokens:
        raise ConfigInvalid(
            f"{where}: draft.block_size: {config.draft.block_size} does not fit in data.context_tokens, "
            f"{config.data.context_tokens}; allowed: less than that"
        )
    if config.data.anchors >= config.data.context_tokens:
        raise ConfigInvalid(
            f"{where}: data.anchors: {config.data.anchors} is not less than data.context_tokens, "
            f"{config.data.context_tokens}; allowed: at most one anchor a token but the last"
        )
