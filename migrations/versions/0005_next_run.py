"""Adds an index that groups similar queued runs. With this index, the time to find the next run does not depend on the number
of queued runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    alike: list[str | sa.TextClause] = [
        sa.text("coalesce(submitted_by, 0)"),
        "priority",
        "queue",
        "needs_cuda",
        "needs_data",
        "needs_gpu",
        "id",
    ]
    queued = sa.text("status = 'queued'")
    op.create_index("ix_runs_next", "runs", alike, sqlite_where=queued, postgresql_where=queued)


def downgrade() -> None:
    op.drop_index("ix_runs_next", "runs")
