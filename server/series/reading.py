"""Reads one series, or series of many runs, at any zoom level: raw points, or buckets if there are more points than requested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from sqlalchemy import Select, and_, bindparam, or_, select
from sqlalchemy.orm import Session

from server.database.models import SeriesRow
from server.series.block_cache import Extent, read_extents, run_queries
from server.series.layout import Layout, RecordedLayout, SeriesColumns
from server.series.plans import (
    Buckets,
    BucketsPlan,
    PointsPlan,
    RawPoints,
    ReadPlan,
    Selection,
    StepRanges,
    bucket_bounds,
    level_for,
)
from stablessm_core.telemetry.blocks import BUCKET
from stablessm_core.telemetry.series import LAYER_GROUPS

MAX_POINTS = 2000
BATCH_NUMBERS = 4 << 20  # maximum number of values that are decoded at the same time

_SERIES = SeriesRow.__table__.c
_COLUMNS: Select[Any] = (
    select(_SERIES.run_id, _SERIES.name, _SERIES.group_name, _SERIES.column_offset, _SERIES.width, _SERIES.unit)
    .where(_SERIES.run_id.in_(bindparam("runs", expanding=True)), _SERIES.derived.is_(False))
    .order_by(_SERIES.run_id, _SERIES.group_name, _SERIES.column_offset)
)


@dataclass(frozen=True)
class SeriesData:
    """Part of a series: raw points or an envelope. All 2-D arrays have shape (n, width), with the rows in step order.

    Raw points have `value` (float32 as recorded, float64 for derived series). An envelope has buckets. Bucket i covers the steps
    `step[i]..last_step[i]` with `count[i]` recorded points: min and max over the finite values (NaN if there are none), the last
    value unchanged, and the number of non-finite values.
    """

    name: str
    unit: str
    eigenvalues: np.ndarray | None  # the chosen eigenvalues; None: all
    step: np.ndarray  # int64 (n,)
    value: np.ndarray | None = None
    last_step: np.ndarray | None = None  # int64 (n,)
    count: np.ndarray | None = None  # int64 (n,)
    min: np.ndarray | None = None
    max: np.ndarray | None = None
    last: np.ndarray | None = None
    nonfinite: np.ndarray | None = None  # int64 (n, width)


def recorded_layouts(
    session: Session, run_ids: Sequence[int], *, name: str = "", kinds: Sequence[str] = ()
) -> dict[int, RecordedLayout]:
    """For each run, the layout of its series `name` and of its layers' series of these kinds, from one query."""
    of_layer = _SERIES.group_name.like(f"{LAYER_GROUPS}%")
    wanted = [
        _SERIES.name == name,
        *(and_(_SERIES.name.endswith(f"/{kind}", autoescape=True), of_layer) for kind in kinds),
    ]
    found: dict[int, dict[str, SeriesColumns]] = {run_id: {} for run_id in run_ids}
    for row in session.execute(_COLUMNS.where(or_(*wanted)), {"runs": list(run_ids)}):
        columns = SeriesColumns(row.name, row.group_name, row.column_offset, row.width, row.unit, derived=False)
        found[row.run_id][row.name] = columns
    return {run_id: RecordedLayout(run_id, series) for run_id, series in found.items()}


def read_series(
    session: Session,
    run_id: int,
    name: str,
    *,
    from_step: int | None = None,
    to_step: int | None = None,
    max_points: int = MAX_POINTS,
    eigenvalues: Sequence[int] | None = None,
    layout: Layout | None = None,
) -> SeriesData:
    """The series between two steps (both included): raw points if there are at most `max_points`, else buckets.

    Raises LookupError for an unknown run or series, ValueError for an eigenvalue that is not in the series.
    """
    if max_points < 1:
        raise ValueError(f"max_points is {max_points}; at least 1 is needed")
    layout = layout or Layout(session, run_id)
    selection = Selection(layout, layout.find(name), eigenvalues)
    return read_many(session, [selection], max_points, from_step, to_step)[0]


def read_many(
    session: Session,
    selections: Sequence[Selection],
    max_points: int,
    from_step: int | None = None,
    to_step: int | None = None,
) -> list[SeriesData]:
    """The result of `read_series` for each selection. The selections may belong to different runs; they share the queries."""
    extents = read_extents(session, selections, from_step, to_step)
    sizes = [_size(selection, extent.points, max_points) for selection, extent in zip(selections, extents, strict=True)]
    found: list[SeriesData] = []
    for batch in batches(sizes):
        plans = [_plan(*pair, max_points) for pair in zip(selections[batch], extents[batch], strict=True)]
        results = run_queries(session, plans)
        found += [_series_data(plan.selection, result, max_points) for plan, result in zip(plans, results, strict=True)]
    return found


def read_points(session: Session, selection: Selection, ranges: StepRanges) -> RawPoints:
    """The recorded points of the selection inside the step ranges."""
    return run_queries(session, [PointsPlan(selection, ranges)])[0]


def batches(sizes: Sequence[int]) -> Iterator[slice]:
    """Slices of neighbouring reads. Each slice reads at most BATCH_NUMBERS values, or contains a single read of more values."""
    begin, total = 0, 0
    for i, size in enumerate(sizes):
        if i > begin and total + size > BATCH_NUMBERS:
            yield slice(begin, i)
            begin, total = i, 0
        total += size
    if len(sizes) > begin:
        yield slice(begin, len(sizes))


def _plan(selection: Selection, extent: Extent, max_points: int) -> ReadPlan[RawPoints | Buckets]:
    if extent.points <= max_points:
        return PointsPlan(selection, [(extent.low, extent.high)])
    return BucketsPlan(selection, level_for(extent.points, max_points), extent.low, extent.high)


def _size(selection: Selection, points: int, max_points: int) -> int:
    """The approximate number of values that are decoded for a selection: one per raw point, four per bucket."""
    level = level_for(points, max_points) if points > max_points else 0
    return points // int(BUCKET**level) * (4 if level else 1) * (selection.row.offset + selection.row.width)


def _series_data(selection: Selection, found: RawPoints | Buckets, max_points: int) -> SeriesData:
    data = partial(SeriesData, selection.row.name, selection.row.unit, selection.eigenvalues)
    if isinstance(found, RawPoints):
        return data(step=found.step, value=_rows(found.values))
    if not len(found.first):  # no two recorded steps are consecutive
        return data(step=found.first, value=_rows(found.stats[:, 2]))
    starts, ends = bucket_bounds(found.points, max_points)
    return data(
        step=found.first[starts],
        last_step=found.last[ends],
        count=np.add.reduceat(found.points, starts),
        min=_rows(np.fmin.reduceat(found.stats[:, 0], starts, axis=1)),
        max=_rows(np.fmax.reduceat(found.stats[:, 1], starts, axis=1)),
        last=_rows(found.stats[:, 2, ends]),
        nonfinite=_rows(np.add.reduceat(found.stats[:, 3], starts, axis=1, dtype=np.int64)),
    )


def _rows(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values.T)
