"""Creates the first schema: runs, sweeps, series stored in blocks, alerts, status changes, checkpoints and workers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from migrations.loss import losing

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "sweeps",
        sa.Column("id", ID, nullable=False),
        sa.Column("base", JSON, nullable=False),
        sa.Column("grid", JSON, nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_sweeps"),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("host", sa.String(length=200), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("capabilities", JSON, nullable=False),
        sa.Column("beat", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("started_at", sa.Float(precision=53), nullable=False),
        sa.Column("seen_at", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
    )
    op.create_table(
        "runs",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(length=200), nullable=True),
        sa.Column("tags", JSON, nullable=False),
        sa.Column("notes", sa.Text(), server_default="", nullable=False),
        sa.Column("config", JSON, nullable=False),
        sa.Column("sweep_id", ID, nullable=True),
        sa.Column("cloned_from", ID, nullable=True),
        sa.Column("idempotency_key", sa.String(length=200), nullable=True),
        sa.Column("status", sa.String(length=16), server_default="queued", nullable=False),
        sa.Column("status_reason", sa.Text(), server_default="", nullable=False),
        sa.Column("priority", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("needs_cuda", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("needs_data", sa.String(length=300), server_default="", nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("started_at", sa.Float(precision=53), nullable=True),
        sa.Column("finished_at", sa.Float(precision=53), nullable=True),
        sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("beat", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("owner", sa.String(length=200), nullable=True),
        sa.Column("workers_lost", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("seq", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("step", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("steps_per_second", sa.Float(precision=53), nullable=True),
        sa.Column("environment", JSON, nullable=True),
        sa.Column("result", JSON, nullable=True),
        sa.Column("divergence", JSON, nullable=True),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweeps.id"], name="fk_runs_sweep_id_sweeps"),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.UniqueConstraint("idempotency_key", name="uq_runs_idempotency_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_runs_queue", "runs", ["status", sa.text("priority DESC"), "id"])
    op.create_index("ix_runs_sweep_id", "runs", ["sweep_id"])

    op.create_table(
        "alerts",
        sa.Column("id", ID, nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("severity", sa.String(length=10), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("series", sa.String(length=120), server_default="", nullable=False),
        sa.Column("layer", sa.Integer(), nullable=True),
        sa.Column("eigenvalue", sa.Integer(), nullable=True),
        sa.Column("tensor", sa.String(length=200), server_default="", nullable=False),
        sa.Column("value", sa.String(length=40), server_default="", nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_alerts_run_id_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_alerts"),
    )
    op.create_index("ix_alerts_run_id_seq", "alerts", ["run_id", "seq"])
    op.create_index("uq_alerts_event", "alerts", ["run_id", "kind", "series", "tensor", "step", "attempt"], unique=True)

    op.create_table(
        "blocks",
        sa.Column("run_id", ID, nullable=False),
        sa.Column("group_name", sa.String(length=60), nullable=False),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("stride", sa.BigInteger(), nullable=False),
        sa.Column("point_count", sa.Integer(), nullable=False),
        sa.Column("column_count", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_blocks_run_id_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "group_name", "level", "first_step", name="pk_blocks"),
    )
    op.create_index("ix_blocks_run_id_seq", "blocks", ["run_id", "seq"])

    op.create_table(
        "checkpoints",
        sa.Column("run_id", ID, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("path", sa.String(length=400), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_checkpoints_run_id_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "step", name="pk_checkpoints"),
    )
    op.create_table(
        "series",
        sa.Column("run_id", ID, nullable=False),
        sa.Column("name", sa.String(length=120), nullable=False),
        sa.Column("group_name", sa.String(length=60), nullable=False),
        sa.Column("column_offset", sa.Integer(), nullable=False),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("unit", sa.String(length=20), nullable=False),
        sa.Column("derived", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_series_run_id_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "name", name="pk_series"),
    )
    op.create_table(
        "transitions",
        sa.Column("run_id", ID, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("truncated_from", sa.BigInteger(), nullable=True),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_transitions_run_id_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "seq", name="pk_transitions"),
    )
    if op.get_bind().dialect.name == "postgresql":
        # payloads are already compressed, so PostgreSQL stores them out of line without compression
        op.execute("ALTER TABLE blocks ALTER COLUMN payload SET STORAGE EXTERNAL")


def downgrade() -> None:
    losing(runs="true", sweeps="true")
    for table in ("transitions", "series", "checkpoints", "blocks", "alerts", "runs", "workers", "sweeps"):
        op.drop_table(table)
