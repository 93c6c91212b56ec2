"""What an attempt ran on and was asked to be, for `dflashctl diff` when its container is gone."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add run.json and environment.json to the attempts; those that are there have none."""
    op.add_column("attempts", sa.Column("spec", sa.JSON()))
    op.add_column("attempts", sa.Column("environment", sa.JSON()))
