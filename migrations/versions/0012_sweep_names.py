"""Adds the name of a sweep and the token that submitted the sweep."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.loss import losing

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("sweeps", sa.Column("name", sa.String(length=200), nullable=True))
    op.add_column("sweeps", sa.Column("submitted_by", ID, nullable=True))


def downgrade() -> None:
    losing(sweeps="name IS NOT NULL OR submitted_by IS NOT NULL")
    for column in ("submitted_by", "name"):
        op.drop_column("sweeps", column)
