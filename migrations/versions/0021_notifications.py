"""Adds the format of a webhook, its last delivery, the messages that wait or were sent, and silences."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.loss import losing

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("webhooks", sa.Column("format", sa.String(length=10), server_default="json", nullable=False))
    op.add_column("webhooks", sa.Column("last_sent_at", sa.Float(precision=53), nullable=True))
    op.add_column("webhooks", sa.Column("last_answer", sa.String(length=300), server_default="", nullable=False))
    op.create_table(
        "notifications",
        sa.Column("id", ID, nullable=False),
        sa.Column("webhook_id", ID, nullable=False),
        sa.Column("destination", sa.String(length=200), nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("kind", sa.String(length=60), nullable=False),
        sa.Column("severity", sa.String(length=10), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("first_at", sa.Float(precision=53), nullable=False),
        sa.Column("last_at", sa.Float(precision=53), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("due_at", sa.Float(precision=53), nullable=False),
        sa.Column("due_by", sa.Float(precision=53), nullable=False),
        sa.Column("sent_at", sa.Float(precision=53), nullable=True),
        sa.Column("repeat_at", sa.Float(precision=53), nullable=True),
        sa.Column("repeated", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("tries", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("answer", sa.String(length=300), server_default="", nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_notifications_run_id_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_notifications"),
    )
    op.create_index("ix_notifications_run_id", "notifications", ["run_id"])
    op.create_index("ix_notifications_webhook_id_state", "notifications", ["webhook_id", "state"])
    op.create_index("ix_notifications_webhook_id_repeat_at", "notifications", ["webhook_id", "repeat_at"])
    op.create_table(
        "silences",
        sa.Column("id", ID, nullable=False),
        sa.Column("run_id", ID, nullable=True),
        sa.Column("project", sa.String(length=200), nullable=True),
        sa.Column("kind", sa.String(length=60), nullable=True),
        sa.Column("until", sa.Float(precision=53), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("created_by", sa.String(length=200), server_default="", nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_silences_run_id_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_silences"),
    )
    op.create_index("ix_silences_run_id", "silences", ["run_id"])


def downgrade() -> None:
    # an older server would send its own JSON body to every address
    losing(notifications="true", silences="true", webhooks="format <> 'json'")
    op.drop_table("silences")
    op.drop_table("notifications")
    for column in ("last_answer", "last_sent_at", "format"):
        op.drop_column("webhooks", column)
