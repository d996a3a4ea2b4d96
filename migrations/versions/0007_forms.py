"""Adds the form of each layer series (how weights map to eigenvalues), and the distinct forms of a run's layers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from migrations.loss import losing

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(JSONB(), "postgresql")


def upgrade() -> None:
    # NULL in rows that older versions wrote; the form of these rows is derived from the run's configuration
    # (server/series/forms.py)
    op.add_column("series", sa.Column("form", JSON, nullable=True))
    op.add_column("runs", sa.Column("forms", JSON, nullable=True))


def downgrade() -> None:
    losing(series="form IS NOT NULL", runs="forms IS NOT NULL")
    op.drop_column("series", "form")
    op.drop_column("runs", "forms")
