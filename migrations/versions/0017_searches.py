"""Adds searches (random trials of a sweep), the decisions at their rungs, and idempotency keys of sweeps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from migrations.loss import losing

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(JSONB(), "postgresql")
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "searches",
        sa.Column("sweep_id", ID, autoincrement=False, nullable=False),
        sa.Column("search", JSON, nullable=False),
        sa.Column("round", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("ended_at", sa.Float(precision=53), nullable=True),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweeps.id"], name="fk_searches_sweep_id_sweeps", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("sweep_id", name="pk_searches"),
    )
    op.create_table(
        "rungs",
        sa.Column("run_id", ID, autoincrement=False, nullable=False),
        sa.Column("rung", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("sweep_id", ID, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("value", sa.Float(precision=53), nullable=True),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_rungs_run_id_runs", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["sweep_id"], ["searches.sweep_id"], name="fk_rungs_sweep_id_searches", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "rung", name="pk_rungs"),
    )
    op.create_index("ix_rungs_sweep_id", "rungs", ["sweep_id"])
    # NULL in older rows, and in rows of sweeps that were submitted without a key
    op.add_column("sweeps", sa.Column("idempotency_key", sa.String(length=200), nullable=True))
    op.create_index("uq_sweeps_idempotency_key", "sweeps", ["idempotency_key"], unique=True)


def downgrade() -> None:
    losing(rungs="true", searches="true", sweeps="idempotency_key IS NOT NULL")
    op.drop_index("uq_sweeps_idempotency_key", "sweeps")
    op.drop_column("sweeps", "idempotency_key")
    op.drop_table("rungs")
    op.drop_table("searches")
