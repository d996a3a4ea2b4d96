"""Adds tokens with scopes, the audit log of writes, and webhooks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from migrations.loss import losing

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("scope", sa.String(length=10), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("expires_at", sa.Float(precision=53), nullable=True),
        sa.Column("revoked_at", sa.Float(precision=53), nullable=True),
        sa.Column("last_used_at", sa.Float(precision=53), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.UniqueConstraint("sha256", name="uq_tokens_sha256"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "audit",
        sa.Column("id", ID, nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.Column("token_id", ID, nullable=True),
        sa.Column("token_name", sa.String(length=100), nullable=False),
        sa.Column("address", sa.String(length=60), nullable=False),
        sa.Column("method", sa.String(length=10), nullable=False),
        sa.Column("path", sa.String(length=300), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("run_id", ID, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_at", "audit", ["at"])
    op.create_table(
        "webhooks",
        sa.Column("id", ID, nullable=False),
        sa.Column("url", sa.String(length=500), nullable=False),
        sa.Column("events", JSON, nullable=False),
        sa.Column("cursor", JSON, nullable=False),
        sa.Column("failures", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("last_error", sa.String(length=300), server_default="", nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_webhooks"),
    )


def downgrade() -> None:
    losing(tokens="true", audit="true", webhooks="true")
    for table in ("webhooks", "audit", "tokens"):
        op.drop_table(table)
