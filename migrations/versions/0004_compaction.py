"""Adds the time at which the blocks of an ended run were merged."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.loss import losing

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("compacted_at", sa.Float(precision=53), nullable=True))


def downgrade() -> None:
    losing(runs="compacted_at IS NOT NULL")
    op.drop_column("runs", "compacted_at")
