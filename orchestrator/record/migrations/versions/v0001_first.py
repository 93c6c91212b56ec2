"""The first schema. Times are RFC 3339 text of 27 characters, in UTC."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

AT = sa.String(27)


def upgrade() -> None:
    """Make every table."""
    _runs()
    _story()
    _actions()
    _samples()


def _run_id(table: str, *, primary_key: bool = False) -> sa.Column[int]:
    key = sa.ForeignKey("runs.id", name=f"fk_{table}_run_id_runs")
    return sa.Column("run_id", sa.Integer(), key, primary_key=primary_key, nullable=False)


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("target_key", sa.String(), nullable=False),
        sa.Column("target", sa.JSON(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("playbook", sa.String()),
        sa.Column("created_at", AT, nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("removed_at", AT),
        sa.Column("gpu_interval_s", sa.Float(), nullable=False),
    )
    live = sa.text("removed_at IS NULL")
    op.create_index("uq_runs_live", "runs", ["target_key", "name"], unique=True, sqlite_where=live)
    op.create_table(
        "attempts",
        _run_id("attempts", primary_key=True),
        sa.Column("n", sa.Integer(), primary_key=True),
        sa.Column("started_at", AT),
        sa.Column("ended_at", AT),
        sa.Column("failure", sa.String()),
        sa.Column("fingerprint", sa.String()),
        sa.Column("first_step", sa.Integer()),
        sa.Column("last_step", sa.Integer()),
        sa.Column("checkpoint_step", sa.Integer()),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("exit_signal", sa.Integer()),
        sa.Column("rung", sa.Integer()),
        sa.Column("changes", sa.JSON(), nullable=False),
        sa.Column("by", sa.String()),
        sa.Column("session", sa.String()),
    )


def _story() -> None:
    op.create_table(
        "transitions",
        sa.Column("id", sa.Integer(), primary_key=True),
        _run_id("transitions"),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("at", AT, nullable=False),
        sa.Column("from_state", sa.String()),
        sa.Column("to_state", sa.String(), nullable=False),
        sa.Column("summary", sa.String(), nullable=False),
    )
    op.create_index("ix_transitions_run_id_at", "transitions", ["run_id", "at"])
    op.create_table(
        "diagnoses",
        sa.Column("id", sa.Integer(), primary_key=True),
        _run_id("diagnoses"),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("at", AT, nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("failure", sa.String()),
        sa.Column("summary", sa.String(), nullable=False),
        sa.Column("confidence", sa.Float(), nullable=False),
        sa.Column("fingerprint", sa.String()),
    )
    op.create_index("ix_diagnoses_run_id_at", "diagnoses", ["run_id", "at"])
    key = sa.ForeignKey("diagnoses.id", name="fk_evidence_diagnosis_id_diagnoses")
    op.create_table(
        "evidence",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("diagnosis_id", sa.Integer(), key, nullable=False),
        sa.Column("part", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("signature", sa.String()),
        sa.Column("offset", sa.Integer()),
        sa.Column("rank", sa.Integer()),
    )
    op.create_index("ix_evidence_diagnosis_id", "evidence", ["diagnosis_id"])


def _actions() -> None:
    op.create_table(
        "actions",
        sa.Column("id", sa.Integer(), primary_key=True),
        _run_id("actions"),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("intent", sa.JSON(), nullable=False),
        sa.Column("intent_at", AT, nullable=False),
        sa.Column("outcome", sa.String()),
        sa.Column("outcome_at", AT),
        sa.Column("error", sa.String()),
    )
    op.create_index("ix_actions_run_id_intent_at", "actions", ["run_id", "intent_at"])


def _samples() -> None:
    op.create_table(
        "metric_samples",
        _run_id("metric_samples", primary_key=True),
        sa.Column("attempt", sa.Integer(), primary_key=True),
        sa.Column("kind", sa.String(), primary_key=True),
        sa.Column("step", sa.Integer(), primary_key=True),
        sa.Column("at", AT, nullable=False),
        sa.Column("loss", sa.Float()),
        sa.Column("tokens_per_s", sa.Float()),
        sa.Column("step_s", sa.Float()),
        sa.Column("lr", sa.Float()),
        sa.Column("grad_norm", sa.Float()),
        sa.Column("acceptance_length", sa.Float()),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "gpu_samples",
        _run_id("gpu_samples", primary_key=True),
        sa.Column("gpu_index", sa.Integer(), primary_key=True),
        sa.Column("at", AT, primary_key=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("memory_used_bytes", sa.Integer()),
        sa.Column("utilization_pct", sa.Float()),
        sa.Column("power_w", sa.Float()),
        sa.Column("temperature_c", sa.Float()),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "cursors",
        _run_id("cursors", primary_key=True),
        sa.Column("attempt", sa.Integer(), primary_key=True),
        sa.Column("log_offset", sa.Integer(), nullable=False),
        sa.Column("metrics_offset", sa.Integer(), nullable=False),
        sa.Column("strides", sa.JSON(), nullable=False),
    )
