"""What is known and what was done, kept in one SQLite file that survives the program being killed."""

from orchestrator.record.batch import Batch
from orchestrator.record.facade import Record
from orchestrator.record.rows import (
    ActionRow,
    AttemptRow,
    Cursor,
    DiagnosisRow,
    EventRow,
    GpuRow,
    MetricRow,
    RunRow,
)

__all__ = [
    "ActionRow",
    "AttemptRow",
    "Batch",
    "Cursor",
    "DiagnosisRow",
    "EventRow",
    "GpuRow",
    "MetricRow",
    "Record",
    "RunRow",
]
