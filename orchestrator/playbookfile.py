"""The form of a playbook file: which keys, which values. `yamlfile` adds file and line to its errors."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from orchestrator.durations import ALLOWED, parse_duration
from orchestrator.masking import Masker, secret_values
from orchestrator.pattern import Pattern
from orchestrator.sizes import parse_size
from orchestrator.types.failure import FailureClass

_KEY = re.compile(r"[A-Za-z_][\w.-]*")


def _seconds(value: object) -> object:
    if isinstance(value, str):
        return parse_duration(value)
    if value == 0 and not isinstance(value, bool):
        return 0.0
    raise ValueError(f"write {ALLOWED}")


def _bytes(value: object) -> object:
    if isinstance(value, str):
        with suppress(ValueError):  # the number that is wanted says more
            return parse_size(value)
    return value


def _word(value: object) -> str:
    """A value as `--set key=value` takes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ValueError("a ladder changes single values: a text, a number, true or false")


Duration = Annotated[float, BeforeValidator(_seconds)]
Size = Annotated[int, BeforeValidator(_bytes)]
Word = Annotated[str, BeforeValidator(_word)]
Sentence = Annotated[str, Field(min_length=12, description="a sentence that says why")]
Act = Literal["none", "wait", "relaunch", "relaunch_with", "call"]
Factor = Annotated[
    float, Field(gt=0, le=100, strict=False, description="a factor over 0, such as 0.5 for half of it")
]
Do = Annotated[
    list[Literal["restore_cache", "previous_checkpoint", "skip_batch"]],
    Field(description="a list of restore_cache, previous_checkpoint, skip_batch"),
]
# Without compiled attention the whole score matrix is computed: that is the dense out-of-memory itself.
_NO_COMPILE = frozenset({"TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE", "TORCHDYNAMO_SUPPRESS_ERRORS"})

# No failure can be made of these, and a rule about the way to a run would be one about the run.
_NO_FAILURES = frozenset(
    {
        *(FailureClass.HEALTHY, FailureClass.COMPLETED, FailureClass.SSH_ERROR, FailureClass.PCT_ERROR),
        *(FailureClass.TMUX_ERROR, FailureClass.SESSION_LOST),
    }
)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class RungModel(_Model):
    """One step of a ladder."""

    why: Sentence
    set: dict[str, Word] = {}
    scale: dict[str, Factor] = {}
    env: dict[str, Word] = {}
    do: Do = []

    @model_validator(mode="after")
    def _names(self) -> RungModel:
        for name in (*self.set, *self.scale, *self.env):
            if not _KEY.fullmatch(name):
                raise ValueError(f'"{name}" is no key; letters, digits, "_", "." and "-"')
        if both := self.set.keys() & self.scale.keys():
            raise ValueError(f'"{min(both)}" is both set and scaled')
        if off := self.env.keys() & _NO_COMPILE:
            raise ValueError(f'"{min(off)}" switches compiling off, which is the dense out-of-memory')
        masker = Masker()
        for name, value in (*self.set.items(), *self.env.items()):
            told = f"{name}={value}"
            if masker.text(told) != told or (name in self.env and secret_values({name: value})):
                raise ValueError(f'"{name}" would be a secret that every record shows; give it by --env')
        return self


class BoundsModel(_Model):
    """How far a ladder may change one key; without a bound, to any value."""

    minimum: Annotated[float, Field(strict=False)] | None = None
    maximum: Annotated[float, Field(strict=False)] | None = None

    @model_validator(mode="after")
    def _order(self) -> BoundsModel:
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise ValueError("the minimum is over the maximum")
        return self


class RuleModel(_Model):
    """One rule."""

    act: Annotated[Act, Field(description="none, wait, relaunch, relaunch_with or call")]
    why: Sentence
    attempts: (
        Annotated[int, Field(ge=1, le=100, description="1 to 100 relaunches without progress")] | None
    ) = None
    ladder: Annotated[list[RungModel], Field(description="a list of {why, set, scale, env, do}")] = []
    do: Do = []
    then: Annotated[Literal["give_up", "call"], Field(description="give_up or call")] | None = None
    backoff: Annotated[list[Duration], Field(min_length=1)] | None = None
    needs_progress: bool = False

    @model_validator(mode="after")
    def _fits(self) -> RuleModel:
        if (self.act == "relaunch_with") != bool(self.ladder):
            raise ValueError('"ladder" belongs to "act: relaunch_with", and that act needs one')
        if self.act == "relaunch" and self.attempts is None:
            raise ValueError('"act: relaunch" needs "attempts", a number from 1 to 100')
        if self.act not in ("relaunch", "relaunch_with") and (
            self.attempts or self.backoff or self.needs_progress or self.do or self.then
        ):
            raise ValueError('"attempts", "backoff", "needs_progress", "do" and "then" belong to a relaunch')
        return self


class CustomModel(RuleModel):
    """A rule of the user's own: what a line looks like, and what to do when an attempt died with it."""

    name: Annotated[
        str, Field(pattern=r"^[a-z][a-z0-9_-]{0,39}$", description="a short name: a-z, 0-9, _ and -")
    ]
    regex: Annotated[str, Field(min_length=1, description="a regular expression without looking around")]
    failure: Annotated[FailureClass | None, Field(alias="class", strict=False)] = None
    label: Annotated[str, Field(max_length=200, description="what it is, in a few words")] | None = None

    @field_validator("regex")
    @classmethod
    def _compiles(cls, text: str) -> str:
        Pattern(text)
        return text

    @field_validator("failure")
    @classmethod
    def _is_failure(cls, failure: FailureClass | None) -> FailureClass | None:
        if failure in _NO_FAILURES:
            raise ValueError("it is no failure of a run")
        return failure


class LoopModel(_Model):
    """When deaths are a loop."""

    deaths: Annotated[int, Field(ge=2, le=1000)] = 5
    within: Duration = 1800.0


class LimitsModel(_Model):
    """Stall limits by phase."""

    init: Duration | None = None
    load: Duration | None = None
    compile: Duration | None = None
    warmup: Duration | None = None
    train: Duration | None = None
    eval: Duration | None = None
    checkpoint: Duration | None = None
    export: Duration | None = None
    train_steps: (
        Annotated[float, Field(ge=1, strict=False, description="a number of median steps, 1 or more")] | None
    ) = None
    # Of the log of a program without a heartbeat; nought would make each of them hung at once.
    silence: Annotated[Duration, Field(gt=0, description=f"{ALLOWED}, longer than nothing")] | None = None


class PlaybookModel(_Model):
    """One file."""

    extends: Annotated[Literal["default"], Field(description='"default", the shipped playbook')] | None = None
    backoff: (
        Annotated[list[Duration], Field(min_length=1, description=f"a list of durations, each {ALLOWED}")]
        | None
    ) = None
    jitter: Annotated[float, Field(ge=0, le=1, strict=False, description="a share from 0 to 1")] | None = None
    max_attempts_per_day: Annotated[int, Field(ge=1, le=10_000, description="1 to 10000")] | None = None
    crash_loop: LoopModel | None = None
    limits: LimitsModel = LimitsModel()
    gpu_floor_bytes: Annotated[Size, Field(ge=0, description="bytes, or 512 MiB")] | None = None
    min_free_bytes: Annotated[Size, Field(ge=0, description="bytes, or 10 GiB")] | None = None
    grace: Duration | None = None
    allow: Annotated[dict[str, BoundsModel], Field(description="key: {minimum, maximum}, or {}")] = {}
    rules: dict[str, RuleModel] = {}
    custom: Annotated[
        list[CustomModel], Field(max_length=200, description="a list of {name, regex, act, why, ...}")
    ] = []
