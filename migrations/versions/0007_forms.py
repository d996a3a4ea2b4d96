"""The form by which a layer's eigenvalues follow from its weights, with its series; and what forms the layers of a run have."""

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
    # NULL in rows from before and in those of older programs: there the run's configuration says it (server/series/forms.py)
    op.add_column("series", sa.Column("form", JSON, nullable=True))
    op.add_column("runs", sa.Column("forms", JSON, nullable=True))


def downgrade() -> None:
    losing(series="form IS NOT NULL", runs="forms IS NOT NULL")
    op.drop_column("series", "form")
    op.drop_column("runs", "forms")
