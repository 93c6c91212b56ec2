"""Alembic's entry: migrates the connection that it was handed, inside that connection's transaction."""

from alembic import context

from orchestrator.record.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    # SQLite's DDL is transactional: a migration killed half way leaves nothing.
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
