"""Adds a checksum of every stored payload. Blocks that an older version writes or rewrites have no valid checksum."""

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
    # no loss, because checksums can be computed again from the payloads
    op.drop_column("blocks", "checksum")
