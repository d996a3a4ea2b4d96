"""Stores the form of every layer's series (how weights map to eigenvalues) for runs that were recorded before forms existed.

The form is derived from the map in the run's configuration. Before this revision, readers derived a missing form from the
configuration, which had one map for all layers.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from stablessm_core.telemetry.forms import Form

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(JSONB(), "postgresql")
RUNS = sa.table("runs", sa.column("id", sa.Integer), sa.column("config", JSON))
SERIES = sa.table("series", sa.column("run_id", sa.Integer), sa.column("group_name", sa.Text), sa.column("form", JSON))


def upgrade() -> None:
    connection = op.get_bind()
    # a JSON column without a value may hold either SQL's NULL or JSON's null
    without = sa.and_(
        SERIES.c.group_name.startswith("ssm/"), sa.or_(SERIES.c.form.is_(None), sa.cast(SERIES.c.form, sa.Text) == "null")
    )
    old = connection.execute(
        sa.select(RUNS.c.id, RUNS.c.config).where(RUNS.c.id.in_(sa.select(SERIES.c.run_id).where(without)))
    ).all()
    for run_id, config in old:
        map_ = (config.get("model") or {}).get("reparameterization")
        if map_ is None:
            continue  # nothing is known about the layer's eigenvalues
        form = Form.of_map(map_["name"], map_["time"], a=map_.get("a", 1.0), b=map_.get("b", 0.5)).data
        connection.execute(sa.update(SERIES).where(SERIES.c.run_id == run_id, without).values(form=form))


def downgrade() -> None:
    """Nothing has to be undone: the previous version also reads stored forms, and derives the same series from them."""
