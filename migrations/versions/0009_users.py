"""Adds users with quotas, and the machine that trained a run. A run that was submitted to an older version has no user; the
run's token identifies the submitter."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.loss import losing

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
ALIKE = ("priority", "queue", "needs_cuda", "needs_data", "needs_gpu", "needs_task")
RAN = ("worker", "host", "gpu_name")


def upgrade() -> None:
    op.create_table(
        "users",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("identity", sa.String(length=200), nullable=True),
        sa.Column("may_change_all", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("max_running", sa.Integer(), nullable=True),
        sa.Column("max_queued", sa.Integer(), nullable=True),
        sa.Column("max_bytes", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_users"),
        sa.UniqueConstraint("name", name="uq_users_name"),
        sa.UniqueConstraint("identity", name="uq_users_identity"),
        sqlite_autoincrement=True,
    )
    op.add_column("tokens", sa.Column("user_id", ID, nullable=True))
    op.add_column("tokens", sa.Column("names_users", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column("audit", sa.Column("user_name", sa.String(length=100), server_default="", nullable=False))
    op.add_column("runs", sa.Column("user_id", ID, nullable=True))
    for name in RAN:
        op.add_column("runs", sa.Column(name, sa.String(length=200), nullable=True))
    op.create_index("ix_runs_user_id_status", "runs", ["user_id", "status"])
    # in the index, the new column comes after all existing columns except `id`, because queries of older versions rely on the
    # positions of these columns
    _index("coalesce(user_id, -1)")


def downgrade() -> None:
    losing(
        users="true", tokens="user_id IS NOT NULL OR names_users", audit="user_name <> ''",
        runs="user_id IS NOT NULL OR gpu_name IS NOT NULL",  # worker and host are no loss: transitions name them
    )  # fmt: skip
    _index()
    op.drop_index("ix_runs_user_id_status", "runs")
    for name in (*reversed(RAN), "user_id"):
        op.drop_column("runs", name)
    op.drop_column("audit", "user_name")
    op.drop_column("tokens", "names_users")
    op.drop_column("tokens", "user_id")
    op.drop_table("users")


def _index(*last: str) -> None:
    queued = sa.text("status = 'queued'")
    op.drop_index("ix_runs_next", "runs")
    columns: list[str | sa.TextClause] = [sa.text("coalesce(submitted_by, 0)"), *ALIKE, *(sa.text(one) for one in last), "id"]
    op.create_index("ix_runs_next", "runs", columns, sqlite_where=queued, postgresql_where=queued)
