"""Adds the kind and project of a run, and what a program outside of our workers says about the run that it reports."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from migrations.loss import losing

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(JSONB(), "postgresql")


def upgrade() -> None:
    op.add_column("runs", sa.Column("kind", sa.String(length=16), server_default="trained", nullable=False))
    op.add_column("runs", sa.Column("project", sa.String(length=200), server_default="", nullable=False))
    op.add_column("runs", sa.Column("external_id", sa.String(length=36), nullable=True))
    op.add_column("runs", sa.Column("reported_config", JSON, nullable=True))
    op.add_column("runs", sa.Column("how", JSON, nullable=True))
    op.add_column("runs", sa.Column("layers", JSON, nullable=True))
    op.create_index("uq_runs_external_id", "runs", ["external_id"], unique=True)
    op.create_index("ix_runs_project", "runs", ["project"])


def downgrade() -> None:
    losing(runs="kind <> 'trained' OR project <> ''")
    # an older server cannot show a run without a configuration of ours
    for table in ("autopsies", "rungs", "checkpoints", "tracebacks", "run_logs", "transitions", "alerts", "blocks", "series"):
        op.execute(f"DELETE FROM {table} WHERE run_id IN (SELECT id FROM runs WHERE kind <> 'trained')")  # noqa: S608
    op.execute("DELETE FROM runs WHERE kind <> 'trained'")
    op.drop_index("ix_runs_project", "runs")
    op.drop_index("uq_runs_external_id", "runs")
    for column in ("layers", "how", "reported_config", "external_id", "project", "kind"):
        op.drop_column("runs", column)
