"""Finds the layer or record that a URL names, and the columns of a series that belong to given eigenvalues."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from sqlalchemy.orm import Session

from server.errors import Invalid
from server.http.api.runs import find_run
from server.series.layout import Layout, SeriesColumns
from server.series.records import LayersOfRun, RecordOfLayer, records_of
from stablessm_core.telemetry.forms import SHARED, shared_columns
from stablessm_core.telemetry.series import LAYER_GROUPS, layer_group

MOST_LISTED = 40
RECORD_MEANING = "Number of the layer, or id of one of its records from the run's catalogue, such as 0 or 0.dt_bias."
Record = Annotated[str, Query(min_length=1, max_length=100, description=RECORD_MEANING)]


def run_records(session: Session, layout: Layout) -> list[RecordOfLayer]:
    """The records of all layers of the run, in the order of its layers. Raises NotFound."""
    series = [(row.name, row.group, row.width, row.form) for row in layout.series.values()]
    run = find_run(session, layout.run_id)
    return records_of(series, LayersOfRun.of(run.kind, run.config.get("model"), run.layers))


def find_record(session: Session, layout: Layout, id_: str) -> RecordOfLayer:
    """The record with this id. Raises Invalid with a list of the known ids."""
    known = {record.id: record for record in run_records(session, layout)}
    if not known and id_.isdigit():  # nothing is recorded yet, and this version does not support the layers
        return RecordOfLayer(id_, int(id_), "", None, None, ())
    if id_ not in known:
        listed = ", ".join(list(known)[:MOST_LISTED]) + (", ..." if len(known) > MOST_LISTED else "")
        raise Invalid(f"run {layout.run_id} has no layer {id_[:60]!r}", field="layer", allowed=listed or "none is recorded")
    return known[id_]


def eigenvalues_of(layout: Layout, row: SeriesColumns) -> int | None:
    """The number of eigenvalues of a series, if several eigenvalues share a column; None if each eigenvalue has its own
    column."""
    if row.kind not in SHARED or not row.group.startswith(LAYER_GROUPS):
        return None
    weight = layout.series.get(f"{row.group}/weight")
    return None if weight is None or weight.width == row.width else weight.width


def columns_chosen(layout: Layout, row: SeriesColumns, chosen: list[int]) -> list[int]:
    """The column of the series for each of these eigenvalues."""
    of = eigenvalues_of(layout, row)
    return chosen if of is None else shared_columns(chosen, of, row.width)


def rows_of(layout: Layout, id_: str) -> list[SeriesColumns]:
    """Every series of the record, including derived series and series computed during evaluations."""
    group = layer_group(id_)
    return [row for row in layout.series.values() if row.group == group or row.group.startswith(group + "/")]
