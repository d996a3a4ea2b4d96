"""Adds the task that a queued run needs, so that only workers that support the task claim the run. Existing runs name no task,
because every worker supports the tasks of existing runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

ALIKE = ("priority", "queue", "needs_cuda", "needs_data", "needs_gpu")


def upgrade() -> None:
    op.add_column("runs", sa.Column("needs_task", sa.String(length=60), server_default="", nullable=False))
    _index(*ALIKE, "needs_task")


def downgrade() -> None:
    _index(*ALIKE)
    op.drop_column("runs", "needs_task")


def _index(*alike: str) -> None:
    queued = sa.text("status = 'queued'")
    op.drop_index("ix_runs_next", "runs")
    columns: list[str | sa.TextClause] = [sa.text("coalesce(submitted_by, 0)"), *alike, "id"]
    op.create_index("ix_runs_next", "runs", columns, sqlite_where=queued, postgresql_where=queued)
