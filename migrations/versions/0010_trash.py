"""Adds the trash, a table of deleted runs whose folders must still be removed, and the number of bytes that a run occupies."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from migrations.loss import losing

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
JSON = sa.JSON().with_variant(JSONB(), "postgresql")


def upgrade() -> None:
    op.add_column("runs", sa.Column("deleted_at", sa.Float(precision=53), nullable=True))
    op.add_column("runs", sa.Column("deleted_by", sa.String(length=200), nullable=True))
    op.add_column("runs", sa.Column("bytes_stored", sa.BigInteger(), server_default=sa.text("0"), nullable=False))
    # This statement reads the size of each payload, not the payload. If an older version of the program writes a block after
    # this migration, the block is counted when it is merged.
    op.execute("UPDATE runs SET bytes_stored = (SELECT coalesce(sum(length(payload)), 0) FROM blocks WHERE run_id = runs.id)")
    op.add_column("checkpoints", sa.Column("bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False))
    in_trash = sa.text("deleted_at IS NOT NULL")
    op.create_index("ix_runs_deleted_at", "runs", ["deleted_at"], sqlite_where=in_trash, postgresql_where=in_trash)
    op.create_table(
        "deleted_runs",
        sa.Column("run_id", ID, autoincrement=False, nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.Column("files", JSON, nullable=False),
        sa.PrimaryKeyConstraint("run_id", name="pk_deleted_runs"),
    )
    op.create_table(
        "installation",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_installation"),
    )


def downgrade() -> None:
    # the remaining values are no loss: bytes can be counted again, and the installation can get a new name
    losing(runs="deleted_at IS NOT NULL", deleted_runs="true")
    op.drop_table("installation")
    op.drop_table("deleted_runs")
    op.drop_index("ix_runs_deleted_at", "runs")
    op.drop_column("checkpoints", "bytes")
    for column in ("bytes_stored", "deleted_by", "deleted_at"):
        op.drop_column("runs", column)
