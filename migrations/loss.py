"""Going back must not lose values unnoticed: each downgrade first says what would be gone, and stops unless that was allowed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op


class DataLoss(ValueError):
    """The downgrade would lose values that the older schema has no place for."""


def losing(**conditions: str) -> None:
    """Raises DataLoss when rows hold something the older schema lacks, unless the caller of the migration accepts it.

    conditions: SQL by table that is true for such a row ("true" where the whole table goes).
    """
    if context.config.attributes.get("lose"):
        return
    counted = {
        table: op.get_bind().scalar(sa.text(f"SELECT count(*) FROM {table} WHERE {condition}"))  # noqa: S608 - our own words
        for table, condition in conditions.items()
    }
    if lost := [f"{count:,} of {table} ({conditions[table]})" for table, count in counted.items() if count]:
        raise DataLoss(
            f"going back would lose values: {'; '.join(lost)}. Make a backup, then allow it (`stablessm migrate --to ... --lose`)"
        )
