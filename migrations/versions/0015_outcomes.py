"""Adds a run's extreme values and verdict, the origin of a fork, hidden runs, and saved views of the list of runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from migrations.loss import losing

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
JSON = sa.JSON().with_variant(JSONB(), "postgresql")
NUMBERS = ("largest_ratio", "largest_relative_step", "nearest_distance", "overflow_budget")


def upgrade() -> None:
    for name in NUMBERS:
        op.add_column("runs", sa.Column(name, sa.Float(precision=53), nullable=True))
    op.add_column("runs", sa.Column("unstable", JSON, nullable=True))
    op.add_column("runs", sa.Column("cause", sa.String(length=40), nullable=True))
    op.add_column("runs", sa.Column("judged_at", sa.Float(precision=53), nullable=True))
    op.add_column("runs", sa.Column("forked_from", ID, nullable=True))
    op.add_column("runs", sa.Column("forked_at_step", sa.BigInteger(), nullable=True))
    op.add_column("runs", sa.Column("fork_changes", JSON, nullable=True))
    op.add_column("runs", sa.Column("hidden", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.create_index("ix_runs_forked_from", "runs", ["forked_from"])
    op.create_table(
        "views",
        sa.Column("id", ID, nullable=False),
        sa.Column("user_id", ID, nullable=True),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("query", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_views"),
    )
    op.create_index("ix_views_user_id_name", "views", ["user_id", "name"], unique=True)


def downgrade() -> None:
    losing(runs="forked_from IS NOT NULL OR hidden", views="true")  # the other new columns can be derived again
    op.drop_index("ix_views_user_id_name", "views")
    op.drop_table("views")
    op.drop_index("ix_runs_forked_from", "runs")
    said = ("hidden", "fork_changes", "forked_at_step", "forked_from", "judged_at", "cause", "unstable")
    for column in (*said, *reversed(NUMBERS)):
        op.drop_column("runs", column)
