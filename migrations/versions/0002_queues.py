"""Adds named queues with limits, the GPU that a run needs, and the token that submitted the run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.loss import losing

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "queues",
        sa.Column("name", sa.String(length=60), nullable=False),
        sa.Column("max_running", sa.Integer(), nullable=True),
        sa.Column("paused", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_queues"),
    )
    # a plain ADD COLUMN, because rebuilding the table would lose SQLite's AUTOINCREMENT and the index on an expression
    op.add_column("runs", sa.Column("queue", sa.String(length=60), server_default="default", nullable=False))
    op.add_column("runs", sa.Column("needs_gpu", sa.String(length=60), server_default="", nullable=False))
    op.add_column("runs", sa.Column("submitted_by", ID, nullable=True))
    op.create_index("ix_runs_status_queue_submitted_by", "runs", ["status", "queue", "submitted_by"])


def downgrade() -> None:
    losing(queues="true", runs="queue <> 'default' OR needs_gpu <> '' OR submitted_by IS NOT NULL")
    op.drop_index("ix_runs_status_queue_submitted_by", "runs")
    for column in ("submitted_by", "needs_gpu", "queue"):
        op.drop_column("runs", column)
    op.drop_table("queues")
