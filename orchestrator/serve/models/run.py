"""One run: its story, its curves, its GPUs, its log."""

from __future__ import annotations

from orchestrator.serve.models.fleet import Model, Run, Setting


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


class LossLimits(Model):
    """What a picture of the losses shows, so that a few far off do not flatten the rest; `note` says it."""

    low: float
    high: float
    note: str


class Curves(Model):
    """A run's curves, one series an attempt that logged a step; at most 2,000 points each.

    `loss_limits` null: a picture may show all losses.
    """

    num_attempts: int
    series: list[Series]
    deaths: list[Death]
    loss_limits: LossLimits | None


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
