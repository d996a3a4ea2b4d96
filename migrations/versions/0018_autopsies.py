"""Adds the autopsies of runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from migrations.loss import losing

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(JSONB(), "postgresql")
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "autopsies",
        sa.Column("run_id", ID, autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("findings", JSON, nullable=True),
        sa.Column("requested_at", sa.Float(precision=53), nullable=False),
        sa.Column("requested_by", sa.String(length=200), nullable=True),
        sa.Column("started_at", sa.Float(precision=53), nullable=True),
        sa.Column("ended_at", sa.Float(precision=53), nullable=True),
        sa.Column("owner", sa.String(length=200), nullable=True),
        sa.Column("beat", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("losses", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_autopsies_run_id_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", name="pk_autopsies"),
    )
    op.create_index("ix_autopsies_state", "autopsies", ["state"])


def downgrade() -> None:
    losing(autopsies="true")
    op.drop_table("autopsies")
