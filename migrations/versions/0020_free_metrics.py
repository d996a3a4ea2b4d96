"""Adds the newest value of each scalar of a run, and the alert rules of a reported run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from migrations.loss import losing

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(JSONB(), "postgresql")


def upgrade() -> None:
    op.add_column("runs", sa.Column("rules", JSON, nullable=True))
    op.add_column("runs", sa.Column("rule_states", JSON, nullable=True))
    op.add_column("runs", sa.Column("last_values", JSON, nullable=True))


def downgrade() -> None:
    losing(runs="rules IS NOT NULL")
    for column in ("last_values", "rule_states", "rules"):
        op.drop_column("runs", column)
