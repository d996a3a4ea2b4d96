"""Prevents a downgrade from silently losing values. A downgrade that would lose values reports them and stops, unless the
caller of the downgrade allows the loss."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op


class DataLoss(ValueError):
    """The downgrade would lose values that the older schema cannot store."""


def losing(**conditions: str) -> None:
    """Raises DataLoss if there are values that the older schema cannot store, unless the migration's caller accepts the loss.

    conditions: for each table, an SQL condition that is true for the rows that contain such values ("true" if the whole table
    is dropped).
    """
    if context.config.attributes.get("lose"):
        return
    counted = {
        table: op.get_bind().scalar(sa.text(f"SELECT count(*) FROM {table} WHERE {condition}"))  # noqa: S608 - no user input
        for table, condition in conditions.items()
    }
    if lost := [f"{count:,} of {table} ({conditions[table]})" for table, count in counted.items() if count]:
        raise DataLoss(
            f"going back would lose values: {'; '.join(lost)}. Make a backup, then allow it (`stablessm migrate --to ... --lose`)"
        )
