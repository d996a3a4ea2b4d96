"""Adds the output of a run's attempts, the tracebacks of failed attempts, and the worker at each status change."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.loss import losing

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "run_logs",
        sa.Column("run_id", ID, nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_run_logs_run_id_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "start", name="pk_run_logs"),
    )
    op.create_table(
        "tracebacks",
        sa.Column("run_id", ID, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_tracebacks_run_id_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "attempt", name="pk_tracebacks"),
    )
    # NULL in older rows, and in rows of status changes at which no worker held the run
    op.add_column("transitions", sa.Column("worker", sa.String(length=200), nullable=True))


def downgrade() -> None:
    losing(run_logs="true", tracebacks="true", transitions="worker IS NOT NULL")
    op.drop_column("transitions", "worker")
    op.drop_table("tracebacks")
    op.drop_table("run_logs")
