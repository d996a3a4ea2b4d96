"""The catalogue of a run: all its series with width, unit, meaning and extent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, case, func, select
from sqlalchemy.orm import Session

from server.database.models import NOT_IN_TRASH, BlockRow, Run, SeriesRow
from server.series.forms import readable_form
from server.series.layout import missing_derived_series
from server.series.records import LayersOfRun
from stablessm_core.telemetry.gradients import state_gradient
from stablessm_core.telemetry.metrics import is_metric_group
from stablessm_core.telemetry.series import MEANINGS, RELATIVE_STEP, source_group


@dataclass(frozen=True)
class SeriesInfo:
    """One series in a run's catalogue. `points` counts the recorded steps; first_step and last_step are None if no step is
    recorded.

    A series that needs the next step has one point fewer than its layer's weight series, and even fewer if telemetry was dropped.
    """

    name: str
    group: str
    width: int
    unit: str
    meaning: str
    derived: bool
    form: dict[str, Any] | None  # the form of the layer, as plain data (stablessm_core.telemetry.forms)
    first_step: int | None
    last_step: int | None
    points: int


_RUN, _SERIES, _BLOCK = Run.__table__, SeriesRow.__table__, BlockRow.__table__
_EXTENTS = (
    select(
        _BLOCK.c.group_name,
        func.min(_BLOCK.c.first_step).label("first_step"),
        func.max(_BLOCK.c.last_step).label("last_step"),
        func.sum(_BLOCK.c.point_count).label("points"),
    )
    .where(_BLOCK.c.run_id == bindparam("run"), _BLOCK.c.level == 0)
    .group_by(_BLOCK.c.group_name)
    .subquery()
)
_SERIES_OF_RUN = _RUN.outerjoin(_SERIES, _SERIES.c.run_id == _RUN.c.id)
_ORDER = (_SERIES.c.group_name, _SERIES.c.column_offset)
# only in the first row, because a run may have many layers and many series
_LAYERS = case((func.row_number().over(order_by=_ORDER) == 1, _RUN.c.layers)).label("layers")
_GRADIENT = case((_RUN.c.kind == "reported", _RUN.c.environment["gradient"].as_string())).label("gradient")
_CATALOGUE = (
    select(
        _RUN.c.seq, _SERIES.c.name, _SERIES.c.group_name, _SERIES.c.width, _SERIES.c.unit, _SERIES.c.derived,
        _SERIES.c.form, _EXTENTS.c.first_step, _EXTENTS.c.last_step, _EXTENTS.c.points, _RUN.c.kind,
        _RUN.c.config["model"].label("model"), _LAYERS, _GRADIENT,
    )
    .select_from(_SERIES_OF_RUN.outerjoin(_EXTENTS, _EXTENTS.c.group_name == _SERIES.c.group_name))
    .where(_RUN.c.id == bindparam("run"), NOT_IN_TRASH)
    .order_by(*_ORDER)
)  # fmt: skip


def read_catalogue(session: Session, run_id: int) -> list[SeriesInfo]:
    """Every series of the run, in the order of groups and columns. Raises LookupError."""
    return catalogue_snapshot(session, run_id)[2]


def catalogue_snapshot(session: Session, run_id: int) -> tuple[int, LayersOfRun, list[SeriesInfo]]:
    """The `seq` of the run's newest event, its layers, and every series at that moment, from one query.

    Raises LookupError.
    """
    rows = session.execute(_CATALOGUE, {"run": run_id}).all()
    if not rows:
        raise LookupError(f"there is no run {run_id}")
    extents = {row.group_name: (row.first_step, row.last_step, int(row.points or 0)) for row in rows}
    forms = {row.group_name: row.form for row in rows if row.name is not None}
    found = {}
    for row in rows:
        if row.name is not None and (not row.derived or readable_form(forms[row.group_name]) is not None):
            extent = _known(row.name, extents[source_group(row.group_name)])
            found[row.name] = SeriesInfo(
                row.name,
                row.group_name,
                row.width,
                row.unit,
                state_gradient(row.name, meaning(row.name, row.group_name), row.gradient),
                row.derived,
                forms[row.group_name],
                *extent,
            )
    extra = missing_derived_series(session, run_id, [(info.name, info.group, info.width) for info in found.values()], forms)
    for item in extra:
        extent = _known(item.name, extents[source_group(item.group)])
        found[item.name] = SeriesInfo(
            item.name, item.group, item.width, item.unit, item.meaning, item.derived, item.form, *extent
        )
    return (
        rows[0].seq,
        LayersOfRun.of(rows[0].kind, rows[0].model, rows[0].layers),
        sorted(found.values(), key=lambda info: info.group) if extra else list(found.values()),
    )


def _known(name: str, extent: tuple[int | None, int | None, int]) -> tuple[int | None, int | None, int]:
    first, last, points = extent
    if last is None or name.rpartition("/")[2] != RELATIVE_STEP:
        return extent
    return (first, last - 1, points - 1) if points > 1 else (None, None, 0)


def meaning(name: str, group: str) -> str:
    """The meaning of the series, in one line; "" for a free metric, and if this version does not support the series."""
    if is_metric_group(group):
        return ""
    return MEANINGS.get(name, MEANINGS.get(name.rsplit("/", 1)[-1], ("", "")))[1]
