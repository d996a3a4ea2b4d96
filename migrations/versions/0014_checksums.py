"""A checksum of every stored payload; blocks that older programs write or rewrite have none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("blocks", sa.Column("checksum", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    # nothing to lose: what a checksum says, its payload says
    op.drop_column("blocks", "checksum")
