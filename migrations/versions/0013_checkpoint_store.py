"""Adds the time at which a checkpoint was copied to the checkpoint store."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.loss import losing

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("stored_at", sa.Float(53), nullable=True))


def downgrade() -> None:
    losing(checkpoints="stored_at IS NOT NULL")
    op.drop_column("checkpoints", "stored_at")
