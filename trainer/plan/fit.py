"""Refuse a step that does not fit, with the knob to turn and how far."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from trainer.errors import ConfigInvalid
from trainer.plan.memory import forecast
from trainer.plan.result import GIB, Forecast

if TYPE_CHECKING:
    from trainer.config import Config

TILE = 128
"""Tokens of a mask's tile: rows of another length waste part of the last one."""
LEAST_CHUNK = 512
"""Block tokens of a loss chunk below which a GPU's matrix products become slow."""
_LARGEST_NAMED = 4


class _Knob(NamedTuple):
    name: str
    lowest: int
    step: int


class _Turn(NamedTuple):
    """A setting that fits by itself, and what half of the knob's value would save."""

    setting: str
    saved: int
    harmless: bool
    """What is learned stays the same."""


def require_fit(found: Forecast, limit_bytes: int) -> None:
    """Return if the worst rank fits.

    Raises:
        ConfigInvalid: it does not; names the largest items, and the knobs that are enough by themselves with
            the value that fits: those that change nothing in what is learned first, then the one on whose
            value most of the memory hangs.
    """
    if found.total <= limit_bytes:
        return
    worst = found.worst
    largest = sorted(worst.items, key=lambda item: -item.bytes)[:_LARGEST_NAMED]
    taken = ", ".join(f"{item.name} {_gib(item.bytes)}" for item in largest)
    raise ConfigInvalid(
        f"memory: the worst step of a {worst.role} rank takes {_gib(found.total)}, over the "
        f"{_gib(limit_bytes)} there are, in its {worst.moment} ({taken}, ...); {_advice(found, limit_bytes)}"
    )


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"


def _advice(found: Forecast, limit: int) -> str:
    turns = sorted(_turns(found, limit), key=lambda turn: (not turn.harmless, -turn.saved))
    if turns:
        return "set " + ", or ".join(turn.setting for turn in turns)
    least = found.config
    for knob in _knobs(found.config):
        least = _with(least, knob.name, min(knob.lowest, _value(least, knob.name)))
    left = _again(found, _with(least, "parallel.shard", "full")).total
    return (
        "no single setting is enough: lower data.batch_rows, data.anchors, data.context_tokens and "
        f"loss.chunk_tokens together (at the least of each it takes {_gib(left)}), or take a smaller model "
        "or more memory"
    )


def _knobs(config: Config) -> tuple[_Knob, ...]:
    block = config.draft.block_size
    tile = TILE if config.data.context_tokens >= 2 * TILE else 1
    lowest = max(tile, 32)
    return (
        _Knob("data.anchors", 1, 1),
        _Knob("data.batch_rows", 1, 1),
        _Knob("data.context_tokens", lowest, tile),
        _Knob("loss.chunk_tokens", -(-LEAST_CHUNK // block) * block, block),
    )


def _turns(found: Forecast, limit: int) -> list[_Turn]:
    turns = []
    for knob in _knobs(found.config):
        now = _value(found.config, knob.name)
        value = _most_that_fits(found, limit, knob, now)
        if value:
            half = _again(found, _with(found.config, knob.name, max(knob.lowest, now // 2)))
            setting, harmless = f"{knob.name}={value} (it is {now})", knob.name == "loss.chunk_tokens"
            turns.append(_Turn(setting, found.total - half.total, harmless))
    if found.drafters > 1 and found.config.parallel.shard != "full":
        shared = _again(found, _with(found.config, "parallel.shard", "full")).total
        if shared <= limit:
            turns.append(_Turn("parallel.shard=full", found.total - shared, harmless=True))
    return turns


def _most_that_fits(found: Forecast, limit: int, knob: _Knob, now: int) -> int:
    """The largest whole number of steps that fits, found by halving; 0 if none does."""
    low, high = 0, (now - 1) // knob.step
    while low < high:
        middle = (low + high + 1) // 2
        total = _again(found, _with(found.config, knob.name, middle * knob.step)).total
        low, high = (middle, high) if total <= limit else (low, middle - 1)
    value = low * knob.step
    return value if value >= knob.lowest else 0


def _again(found: Forecast, config: Config) -> Forecast:
    return forecast(
        config,
        found.shape,
        found.drafters,
        memory_bytes=found.memory_bytes,
        target_parameters=found.target_parameters,
    )


def _value(config: Config, name: str) -> int:
    table, key = name.split(".")
    value: int = getattr(getattr(config, table), key)
    return value


def _with(config: Config, name: str, value: object) -> Config:
    table, key = name.split(".")
    changed = dataclasses.replace(getattr(config, table), **{key: value})
    return dataclasses.replace(config, **{table: changed})
