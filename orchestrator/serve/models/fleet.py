"""The fleet, its stream, and what every request meets."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION = 1


class Model(BaseModel):
    """No field but those that are documented."""

    model_config = ConfigDict(extra="forbid")


class Setting(Model):
    """One changed key of a configuration or an environment."""

    key: str
    value: str


class NextAct(Model):
    """What the playbook has decided; `due_at` null: now, or never by itself."""

    kind: str
    reason: str
    rule: str | None
    attempts_left: int | None
    due_at: str | None
    changes: list[Setting]


class Gpu(Model):
    """One GPU as the run's container sees it; `is_own`: the run may use it."""

    index: int
    name: str | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    utilization_pct: float | None
    power_w: float | None
    temperature_c: float | None
    pids: list[int]
    problem: str | None
    is_own: bool


class Run(Model):
    """One run now. `blind`: why nothing is seen now; what else is told then is of the past.

    `known_at`: this service never saw the run, and what is told is what the record knew at that time.
    `moved_at`: when a new step or phase was last seen; `is_overdue`: far longer ago than a step takes.
    """

    id: int
    name: str
    target: str
    state: str
    summary: str
    failure: str | None
    failure_title: str | None
    attempt: int | None
    phase: str | None
    step: int | None
    total_steps: int | None
    loss: float | None
    tokens_per_s: float | None
    step_s: float | None
    eta_s: float | None
    checkpoint_step: int | None
    started_at: str | None
    looked_at: str | None
    known_at: str | None
    moved_at: str | None
    is_overdue: bool
    kind: str
    clock_skew_s: float | None
    blind: str | None
    next_act: NextAct | None
    is_acting: bool
    is_busy: bool
    has_ended: bool
    remark: str
    holders: str
    gpus: list[Gpu]
    gpu_problem: str | None


class Health(Model):
    """Whether the watch runs and sees every run that has not ended."""

    is_well: bool
    why: list[str]


class Told(Model):
    """One thing that the watch told; `seq` counts all of them since the service began."""

    seq: int
    kind: str
    level: str
    at: str
    run_id: int | None
    run: str
    target: str
    attempt: int | None
    text: str
    detail: dict[str, object]


class Fleet(Model):
    """All runs. `at`: the time here when this was sent; `version` grows with each change."""

    schema_version: int
    version: int
    at: str
    acting: bool
    stale_after_s: float
    health: Health
    runs: list[Run]
    told: list[Told]


class Changes(Model):
    """What changed since the event before: the data of the stream's `runs` event."""

    version: int
    at: str
    health: Health
    runs: list[Run]
    removed: list[int]


class Session(Model):
    """Who asks: `csrf` is what acts must send as X-CSRF-Token, null before a login."""

    is_signed_in: bool
    csrf: str | None
    acting: bool
    version: str


class Accepted(Model):
    """An act that was begun; the stream tells its outcome."""

    accepted: bool
    text: str


class Problem(Model):
    """What is wrong, and what to do."""

    code: str
    message: str
    hint: str | None


class Refusal(Model):
    """The body of every answer that is an error."""

    error: Problem
