"""Reading what a run recorded: its catalogue, its series at any zoom, its events in order.

A long stretch is read from the coarsest stored level that is fine enough: see server.series.zoom.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from server.database.models import NOT_IN_TRASH, AlertRow, BlockRow, Run, SeriesRow, Transition
from server.database.payloads import NEEDED, DamagedPayload, stored_numbers, stored_pieces
from server.series.forms import readable_form
from server.series.layout import Layout as Layout
from server.series.layout import Points as Points
from server.series.layout import implied
from server.series.zoom import Asking, Reader, bucket_bounds, level_for
from stablessm_core.telemetry.series import MEANINGS, RELATIVE_STEP, source_group

MAX_POINTS = 2000
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SeriesInfo:
    """One entry of a run's catalogue. `points`: recorded steps so far; first and last are None before the first one.

    What needs the step after has a point less than its layer's weight (fewer where telemetry was dropped in between).
    """

    name: str
    group: str
    width: int
    unit: str
    meaning: str
    derived: bool
    form: dict[str, Any] | None  # of the layer it belongs to, as plain data (stablessm_core.forms)
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
_CATALOGUE = (
    select(
        _RUN.c.seq, _SERIES.c.name, _SERIES.c.group_name, _SERIES.c.width, _SERIES.c.unit, _SERIES.c.derived,
        _SERIES.c.form, _EXTENTS.c.first_step, _EXTENTS.c.last_step, _EXTENTS.c.points, _RUN.c.config["model"].label("model"),
    )
    .select_from(_SERIES_OF_RUN.outerjoin(_EXTENTS, _EXTENTS.c.group_name == _SERIES.c.group_name))
    .where(_RUN.c.id == bindparam("run"), NOT_IN_TRASH)
    .order_by(_SERIES.c.group_name, _SERIES.c.column_offset)
)  # fmt: skip


@dataclass(frozen=True)
class SeriesData:
    """A stretch of a series, raw or as an envelope. All 2-D arrays are (n, width), rows in step order.

    Raw: `value` (float32 as recorded, float64 for derived series). Envelope: buckets over the steps `step[i]..last_step[i]`
    of `count[i]` recorded points, with min and max over the finite values (NaN where there is none), the last value as it is,
    and how many were not finite.
    """

    name: str
    unit: str
    eigenvalues: np.ndarray | None  # which ones, None: all
    step: np.ndarray  # int64 (n,)
    value: np.ndarray | None = None
    last_step: np.ndarray | None = None  # int64 (n,)
    count: np.ndarray | None = None  # int64 (n,)
    min: np.ndarray | None = None
    max: np.ndarray | None = None
    last: np.ndarray | None = None
    nonfinite: np.ndarray | None = None  # int64 (n, width)


@dataclass
class StoredEvent:
    """What happened under one `seq`: a flush (points, alerts), or a transition (with the alerts that caused it)."""

    seq: int
    points: list[Points] = field(default_factory=list)
    alerts: list[AlertRow] = field(default_factory=list)
    transition: Transition | None = None
    attempt: int = 0
    last_step: int = 0


def catalogue(session: Session, run_id: int) -> list[SeriesInfo]:
    """Every series of the run, in the order of groups and columns. Raises LookupError."""
    return catalogue_at(session, run_id)[2]


def catalogue_at(session: Session, run_id: int) -> tuple[int, dict[str, Any], list[SeriesInfo]]:
    """The run's newest event, its configured model, and every series as it was then: one query. Raises LookupError."""
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
                row.name, row.group_name, row.width, row.unit, meaning(row.name), row.derived, forms[row.group_name], *extent
            )
    extra = implied(session, run_id, [(info.name, info.group, info.width) for info in found.values()], forms)
    for item in extra:
        extent = _known(item.name, extents[source_group(item.group)])
        found[item.name] = SeriesInfo(
            item.name, item.group, item.width, item.unit, item.meaning, item.derived, item.form, *extent
        )
    return (
        rows[0].seq,
        rows[0].model or {},
        sorted(found.values(), key=lambda info: info.group) if extra else list(found.values()),
    )


def _known(name: str, extent: tuple[int | None, int | None, int]) -> tuple[int | None, int | None, int]:
    first, last, points = extent
    if last is None or name.rpartition("/")[2] != RELATIVE_STEP:
        return extent
    return (first, last - 1, points - 1) if points > 1 else (None, None, 0)


def meaning(name: str) -> str:
    """One line on what a series says; "" for one this version does not know."""
    return MEANINGS.get(name, MEANINGS.get(name.rsplit("/", 1)[-1], ("", "")))[1]


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
    """The series between two steps (both included), raw if it has at most `max_points` there, else as an envelope.

    Raises LookupError for an unknown run or series, ValueError for an eigenvalue it does not have.
    """
    if max_points < 1:
        raise ValueError(f"max_points is {max_points}; at least 1 is needed")
    layout = layout or Layout(session, run_id)
    reader = Reader(session, layout, layout.find(name), eigenvalues)
    return reader.alone(asking_series(reader, reader.extent(from_step, to_step), max_points))


def asking_series(reader: Reader, extent: tuple[int, int, int], max_points: int) -> Asking[SeriesData]:
    """What `read_series` gives of a reader's series between the first and last step of the extent, which holds so many points."""
    answer = partial(SeriesData, reader.row.name, reader.row.unit, reader.eigenvalues)
    low, high, points = extent
    if points <= max_points:
        steps, values = yield from reader.asking_raw([(low, high)])
        return answer(step=steps, value=_rows(values))
    first, end, weight, stats = yield from reader.asking_elements(level_for(points, max_points), low, high)
    if not len(first):  # no two recorded steps follow on each other
        return answer(step=first, value=_rows(stats[:, 2]))
    starts, ends = bucket_bounds(weight, max_points)
    return answer(
        step=first[starts],
        last_step=end[ends],
        count=np.add.reduceat(weight, starts),
        min=_rows(np.fmin.reduceat(stats[:, 0], starts, axis=1)),
        max=_rows(np.fmax.reduceat(stats[:, 1], starts, axis=1)),
        last=_rows(stats[:, 2, ends]),
        nonfinite=_rows(np.add.reduceat(stats[:, 3], starts, axis=1, dtype=np.int64)),
    )


def events_after(session: Session, run_id: int, seq: int, limit: int = 64, layout: Layout | None = None) -> list[StoredEvent]:
    """The next at most `limit` numbers of the run's events after `seq`, in order, with everything each one holds.

    Numbers whose points were taken back since are left out. A stream must send all of an event before it counts as seen.
    """
    upper = session.scalar(select(Run.seq).where(Run.id == run_id))
    upper = min(upper or 0, seq + limit)
    between = [[table.run_id == run_id, table.seq > seq, table.seq <= upper] for table in (BlockRow, AlertRow, Transition)]
    rows = list(session.scalars(select(BlockRow).where(*between[0], BlockRow.level == 0)))
    raw = [BlockRow.run_id == run_id, BlockRow.level == 0]
    # a merged block stands under its last number, so of each group the first one beyond `upper` may begin with some of these
    beyond = select(BlockRow.group_name, func.min(BlockRow.seq)).where(*raw, BlockRow.seq > upper).group_by(BlockRow.group_name)
    for group, number in session.execute(beyond):
        first = select(BlockRow).where(*raw, BlockRow.group_name == group, BlockRow.seq == number).order_by(BlockRow.first_step)
        rows += session.scalars(first.limit(1))
    alerts = session.scalars(select(AlertRow).where(*between[1]).order_by(AlertRow.id))
    changes = session.scalars(select(Transition).where(*between[2]))
    return events_of(session, seq, upper, rows, alerts, changes, lambda: layout or Layout(session, run_id))


def events_of(
    session: Session,
    seq: int,
    upper: int,
    rows: Iterable[BlockRow],
    alerts: Iterable[AlertRow],
    changes: Iterable[Transition],
    layout: Callable[[], Layout],
) -> list[StoredEvent]:
    """The events seq + 1..upper of one run from all that is stored under them; `layout` is asked once, if there are points.

    A series that needs the step after stands in the event of that step. The database is asked for the step before the first
    point only where `layout` has not seen it.
    """
    events = {number: StoredEvent(number) for number in range(seq + 1, upper + 1)}
    found: Layout | None = None
    for row, number, at, values in _pieces(rows, seq, upper):
        found = found or layout()
        event = events[number]
        first, before = row.first_step + at * row.stride, None
        if found.follows(row.group_name):
            before = _column_before(session, found, row.group_name, first)
        event.points += found.points(row.group_name, first, row.stride, values, before)
        last = first + (values.shape[1] - 1) * row.stride
        found.newest[row.group_name] = last, values[:, -1]
        event.attempt, event.last_step = row.attempt, max(event.last_step, last)
    for alert in alerts:
        events[alert.seq].alerts.append(alert)
    for change in changes:
        events[change.seq].transition = change
    return [e for e in events.values() if e.points or e.alerts or e.transition]


def _column_before(session: Session, layout: Layout, group: str, step: int) -> np.ndarray | None:
    """The raw column (columns,) of the step before this one; None where that was not recorded or cannot be read."""
    known = layout.newest.get(group)
    if known is not None and known[0] == step - 1:
        return known[1]
    own = [_BLOCK.c.run_id == layout.run_id, _BLOCK.c.group_name == group, _BLOCK.c.level == 0, _BLOCK.c.first_step < step]
    query = select(*NEEDED, _BLOCK.c.stride).where(*own).order_by(_BLOCK.c.first_step.desc()).limit(1)
    row = session.execute(query).one_or_none()
    at, rest = divmod(step - 1 - row.first_step, row.stride) if row is not None else (0, 1)
    if row is None or rest or at >= row.point_count:
        return None
    try:
        return stored_numbers(row)[:, at]
    except DamagedPayload:
        return None  # said where its own points are read


def _pieces(rows: Iterable[BlockRow], seq: int, upper: int) -> list[tuple[BlockRow, int, int, np.ndarray]]:
    """Raw points of the events seq + 1..upper in their order: block, event number, first point in the block, values there."""
    found = []
    for row in rows:
        try:
            pieces = stored_pieces(row)
            chosen = np.flatnonzero((pieces[:, 0] > seq) & (pieces[:, 0] <= upper))
            values = stored_numbers(row) if len(chosen) else np.empty((row.column_count, 0), np.float32)
        except DamagedPayload as damage:
            log.error("%s: a live stream goes on without them", damage)  # of this run; others are read in the same breath
            continue
        ends = np.cumsum(pieces[:, 1])
        for i in chosen.tolist():
            at = int(ends[i] - pieces[i, 1])
            found.append((row, int(pieces[i, 0]), at, values[:, at : ends[i]]))
    return sorted(found, key=lambda part: (part[1], part[0].group_name, part[0].first_step + part[2] * part[0].stride))


def _rows(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values.T)
