"""Adds to a run how far its built-in alerts have come, which the server computes for programs that compute none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("detector_state", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "detector_state")
