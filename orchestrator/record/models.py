"""The tables. Migrations make them; a contract test holds the two together."""

from datetime import datetime, timezone
from typing import Any

from sqlalchemy import JSON, Dialect, Float, ForeignKey, Index, MetaData, String, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator


class UtcDateTime(TypeDecorator[datetime]):
    """An aware instant as RFC 3339 text of fixed width: it sorts as text, and a person can read it."""

    impl = String(27)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """Refuse a naive time: what it meant could not be told later."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"a time in the record must be aware, not {value.isoformat()}")
        return value.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def process_result_value(self, value: str | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Give the aware time back."""
        if value is None:
            return None
        # Python 3.10's fromisoformat does not know the Z; strptime is ten times slower.
        return datetime.fromisoformat(value[:-1]).replace(tzinfo=timezone.utc)


class Base(DeclarativeBase):
    """Names every constraint, so that a migration can speak of it."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy's own
        datetime: UtcDateTime(),
        dict[str, Any]: JSON(),
        float: Float(),  # the default differs between SQLAlchemy 2.0 and 2.1
    }


class Run(Base):
    """A run at a target; a removed one keeps its story and frees its name."""

    __tablename__ = "runs"
    __table_args__ = (
        Index("uq_runs_live", "target_key", "name", unique=True, sqlite_where=text("removed_at IS NULL")),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    target_key: Mapped[str]
    target: Mapped[dict[str, Any]]
    spec: Mapped[dict[str, Any]]
    playbook: Mapped[str | None]
    created_at: Mapped[datetime]
    state: Mapped[str]
    removed_at: Mapped[datetime | None]
    gpu_interval_s: Mapped[float]


class Attempt(Base):
    """One launch of a run."""

    __tablename__ = "attempts"

    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    n: Mapped[int] = mapped_column(primary_key=True)
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    failure: Mapped[str | None]
    fingerprint: Mapped[str | None]
    first_step: Mapped[int | None]
    last_step: Mapped[int | None]
    checkpoint_step: Mapped[int | None]
    exit_code: Mapped[int | None]
    exit_signal: Mapped[int | None]
    rung: Mapped[int | None]
    changes: Mapped[dict[str, Any]]
    by: Mapped[str | None]
    session: Mapped[str | None]
    spec: Mapped[dict[str, Any] | None]
    environment: Mapped[dict[str, Any] | None]


class Transition(Base):
    """A change of state."""

    __tablename__ = "transitions"
    __table_args__ = (Index("ix_transitions_run_id_at", "run_id", "at"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"))
    attempt: Mapped[int]
    at: Mapped[datetime]
    from_state: Mapped[str | None]
    to_state: Mapped[str]
    summary: Mapped[str]


class DiagnosisEntry(Base):
    """A diagnosis that was reported."""

    __tablename__ = "diagnoses"
    __table_args__ = (Index("ix_diagnoses_run_id_at", "run_id", "at"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"))
    attempt: Mapped[int]
    at: Mapped[datetime]
    state: Mapped[str]
    failure: Mapped[str | None]
    summary: Mapped[str]
    confidence: Mapped[float]
    fingerprint: Mapped[str | None]


class EvidenceLine(Base):
    """One line of a diagnosis; `part` is the diagnosis's own list: `evidence`, `cascades` or `warnings`."""

    __tablename__ = "evidence"
    __table_args__ = (Index("ix_evidence_diagnosis_id", "diagnosis_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    diagnosis_id: Mapped[int] = mapped_column(ForeignKey("diagnoses.id"))
    part: Mapped[str]
    source: Mapped[str]
    text: Mapped[str]
    role: Mapped[str]
    signature: Mapped[str | None]
    offset: Mapped[int | None]
    rank: Mapped[int | None]


class Action(Base):
    """An act: its intent is committed before it, its outcome after."""

    __tablename__ = "actions"
    __table_args__ = (Index("ix_actions_run_id_intent_at", "run_id", "intent_at"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"))
    attempt: Mapped[int]
    kind: Mapped[str]
    reason: Mapped[str]
    intent: Mapped[dict[str, Any]]
    intent_at: Mapped[datetime]
    outcome: Mapped[str | None]
    outcome_at: Mapped[datetime | None]
    error: Mapped[str | None]


class MetricSample(Base):
    """A kept line of metrics.jsonl."""

    __tablename__ = "metric_samples"
    __table_args__ = ({"sqlite_with_rowid": False},)

    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    loss: Mapped[float | None]
    tokens_per_s: Mapped[float | None]
    step_s: Mapped[float | None]
    lr: Mapped[float | None]
    grad_norm: Mapped[float | None]
    acceptance_length: Mapped[float | None]


class GpuSample(Base):
    """A kept GPU reading."""

    __tablename__ = "gpu_samples"
    __table_args__ = ({"sqlite_with_rowid": False},)

    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    gpu_index: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime] = mapped_column(primary_key=True)
    attempt: Mapped[int]
    memory_used_bytes: Mapped[int | None]
    utilization_pct: Mapped[float | None]
    power_w: Mapped[float | None]
    temperature_c: Mapped[float | None]


class CursorEntry(Base):
    """What was processed of an attempt's files; `strides`: kind -> steps between kept metrics."""

    __tablename__ = "cursors"

    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    log_offset: Mapped[int]
    metrics_offset: Mapped[int]
    strides: Mapped[dict[str, Any]]
