"""The form of every layer's series, also of runs recorded before forms were: from the map of their configuration, once.

Until here a reader without a form asked the configuration, which knew one map for all layers.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from stablessm_core.forms import Form

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(JSONB(), "postgresql")
RUNS = sa.table("runs", sa.column("id", sa.Integer), sa.column("config", JSON))
SERIES = sa.table("series", sa.column("run_id", sa.Integer), sa.column("group_name", sa.Text), sa.column("form", JSON))


def upgrade() -> None:
    connection = op.get_bind()
    # a JSON column without a value may hold SQL's NULL or JSON's
    without = sa.and_(
        SERIES.c.group_name.startswith("ssm/"), sa.or_(SERIES.c.form.is_(None), sa.cast(SERIES.c.form, sa.Text) == "null")
    )
    old = connection.execute(
        sa.select(RUNS.c.id, RUNS.c.config).where(RUNS.c.id.in_(sa.select(SERIES.c.run_id).where(without)))
    ).all()
    for run_id, config in old:
        map_ = (config.get("model") or {}).get("reparameterization")
        if map_ is None:
            continue  # nothing is known of its eigenvalues
        form = Form.of_map(map_["name"], map_["time"], a=map_.get("a", 1.0), b=map_.get("b", 0.5)).data
        connection.execute(sa.update(SERIES).where(SERIES.c.run_id == run_id, without).values(form=form))


def downgrade() -> None:
    """Nothing to take back: the version before reads what is stored, and would derive the same."""
