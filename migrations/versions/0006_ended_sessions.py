"""Adds a table of signed-out browser sessions, so that the server can refuse copies of their cookies."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.loss import losing

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "ended_sessions",
        sa.Column("id", ID, nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("until", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_ended_sessions"),
        sa.UniqueConstraint("sha256", name="uq_ended_sessions_sha256"),
        sqlite_autoincrement=True,
    )


def downgrade() -> None:
    losing(ended_sessions="true")
    op.drop_table("ended_sessions")
