"""What the JSON API answers, as the OpenAPI document describes it.

Times are RFC 3339 in UTC by the clock of this machine; sizes in bytes, durations in seconds, rates in tokens
a second. A number that is unknown or not finite is null. Texts are masked and without control sequences;
they are data, never markup.
"""

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
    """One run now. `blind`: why nothing is seen now; what else is told then is of the past."""

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


class Attempt(Model):
    """One launch of a run, as the record has it."""

    n: int
    started_at: str | None
    ended_at: str | None
    failure: str | None
    failure_title: str | None
    fingerprint: str | None
    first_step: int | None
    last_step: int | None
    checkpoint_step: int | None
    exit_code: int | None
    exit_signal: int | None
    rung: int | None
    changes: list[Setting]
    by: str | None
    is_death: bool


class Happening(Model):
    """One line of a run's timeline; `key` is unique and stable."""

    key: str
    at: str
    attempt: int
    kind: str
    level: str
    text: str


class Proof(Model):
    """A line or a reading that shows something; `offset` is the line's first byte in the attempt's log."""

    source: str
    text: str
    role: str
    signature: str | None
    offset: int | None
    rank: int | None


class Diagnosis(Model):
    """What was concluded, with its proof."""

    id: int
    attempt: int
    at: str
    state: str
    failure: str | None
    failure_title: str | None
    summary: str
    confidence: float
    fingerprint: str | None
    evidence: list[Proof]
    cascades: list[Proof]
    warnings: list[Proof]


class Action(Model):
    """What was done. Without `outcome_at` it was intended, and nobody wrote down how it went."""

    id: int
    attempt: int
    at: str
    kind: str
    reason: str
    outcome: str | None
    outcome_at: str | None
    error: str | None


class Difference(Model):
    """One key that differs; null where a side does not have it."""

    group: str
    key: str
    old: str | None
    new: str | None


class Environment(Model):
    """What changed from the last attempt that made progress to the newest; `num_more` were left out."""

    old: int
    new: int
    notes: list[str]
    changes: list[Difference]
    num_more: int


class Decision(Model):
    """What an acting watch does next, by the playbook."""

    kind: str
    reason: str
    rule: str | None
    act_at: str | None
    is_due: bool
    changes: list[Setting]
    rung: int | None
    attempts_left: int | None


class Budget(Model):
    """Relaunches spent on one cause since a checkpoint last advanced."""

    cause: str
    spent: int
    allowed: int


class Ceiling(Model):
    """Attempts in 24 hours."""

    attempts: int
    allowed: int


class CrashLoop(Model):
    """Deaths within a time; more than `allowed` call a person."""

    deaths: int
    allowed: int
    within_s: float


class Rung(Model):
    """One rung of the rule's ladder: `tried`, `passed over`, `next` or `to come`."""

    rung: int
    state: str
    why: str


class Gate(Model):
    """What keeps a relaunch back now."""

    gate: str
    why: str


class Plan(Model):
    """The playbook's state for one run; `problem`: why it is not known."""

    source: str | None
    problem: str | None
    rule: str | None
    decision: Decision | None
    budgets: list[Budget]
    ceiling: Ceiling | None
    crash_loop: CrashLoop | None
    ladder: list[Rung]
    gates: list[Gate]


class LogSize(Model):
    """How much of an attempt's log is known here; the log itself tells its size when it is read."""

    attempt: int
    num_bytes: int


class RunDetail(Run):
    """One run now, and all that is on record of it."""

    schema_version: int
    at: str
    created_at: str
    attempts: list[Attempt]
    timeline: list[Happening]
    diagnoses: list[Diagnosis]
    actions: list[Action]
    environment: Environment | None
    playbook: Plan
    logs: list[LogSize]


class Series(Model):
    """One attempt's curve: arrays of one length, thinned; null where a step told no such number."""

    attempt: int
    steps: list[int]
    loss: list[float | None]
    tokens_per_s: list[float | None]
    step_s: list[float | None]


class Death(Model):
    """Where an attempt ended that did not succeed; `loss` null: none was logged."""

    attempt: int
    step: int
    loss: float | None
    label: str
    at: str | None


class Curves(Model):
    """A run's curves, one series an attempt that logged a step; at most 2,000 points each."""

    num_attempts: int
    series: list[Series]
    deaths: list[Death]


class GpuSeries(Model):
    """One GPU's readings: arrays of one length; times in epoch seconds."""

    index: int
    name: str | None
    memory_total_bytes: int | None
    times: list[float]
    memory_used_bytes: list[int | None]
    utilization_pct: list[float | None]
    power_w: list[float | None]
    temperature_c: list[float | None]


class GpuHistory(Model):
    """The readings of a run's GPUs; at most 2,000 a GPU."""

    gpus: list[GpuSeries]


class Line(Model):
    """A line of the log's tail; `seq` counts the run's lines from 1, whatever was forgotten."""

    seq: int
    attempt: int | None
    text: str


class Lines(Model):
    """The newest lines after the one asked for."""

    last: int
    lines: list[Line]


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
