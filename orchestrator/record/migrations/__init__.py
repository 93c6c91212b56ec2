"""Alembic's environment and versions; run by `orchestrator.record.schema` alone, not from a shell."""
