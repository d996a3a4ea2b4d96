"""The events that a live stream sends, in order, each with its points, alerts, status changes and the state of the autopsy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from server.database.models import AlertRow, AutopsyRow, BlockRow, Run, Transition
from server.database.payloads import NEEDED, DamagedPayload, stored_numbers, stored_pieces, stored_places
from server.series.layout import Layout, Points
from stablessm_core.telemetry.metrics import is_metric_group

log = logging.getLogger(__name__)
_BLOCK = BlockRow.__table__


@dataclass
class StoredEvent:
    """All data stored under one `seq`: a flush (points, alerts), a status change (with the alerts that caused it), or a new state
    of the autopsy. An earlier state of the autopsy has no event."""

    seq: int
    points: list[Points] = field(default_factory=list)
    alerts: list[AlertRow] = field(default_factory=list)
    transition: Transition | None = None
    autopsy: AutopsyRow | None = None
    attempt: int = 0
    last_step: int = 0
    metrics: bool = False  # True if some points are of free metrics


def events_after(session: Session, run_id: int, seq: int, limit: int = 64, layout: Layout | None = None) -> list[StoredEvent]:
    """The run's events with the next `limit` numbers after `seq`, in order, with all their data.

    An event number whose points have been truncated since has no event. A stream must send all data of an event before the
    event counts as seen.
    """
    upper = session.scalar(select(Run.seq).where(Run.id == run_id))
    upper = min(upper or 0, seq + limit)
    tables = (BlockRow, AlertRow, Transition, AutopsyRow)
    between = [[table.run_id == run_id, table.seq > seq, table.seq <= upper] for table in tables]
    rows = list(session.scalars(select(BlockRow).where(*between[0], BlockRow.level == 0)))
    raw = [BlockRow.run_id == run_id, BlockRow.level == 0]
    # A merged block has the number of its last event, so in each group, the first block beyond `upper` may begin with points of
    # the requested events.
    beyond = select(BlockRow.group_name, func.min(BlockRow.seq)).where(*raw, BlockRow.seq > upper).group_by(BlockRow.group_name)
    for group, number in session.execute(beyond):
        first = select(BlockRow).where(*raw, BlockRow.group_name == group, BlockRow.seq == number).order_by(BlockRow.first_step)
        rows += session.scalars(first.limit(1))
    alerts = session.scalars(select(AlertRow).where(*between[1]).order_by(AlertRow.id))
    changes = session.scalars(select(Transition).where(*between[2]))
    autopsies = session.scalars(select(AutopsyRow).where(*between[3]))
    return events_of(session, seq, upper, rows, alerts, changes, autopsies, lambda: layout or Layout(session, run_id))


def events_of(
    session: Session,
    seq: int,
    upper: int,
    rows: Iterable[BlockRow],
    alerts: Iterable[AlertRow],
    changes: Iterable[Transition],
    autopsies: Iterable[AutopsyRow],
    layout: Callable[[], Layout],
) -> list[StoredEvent]:
    """The events seq + 1..upper of one run, from its stored rows. `layout` is called once if there are points.

    A value that needs the next step belongs to the event of that step. The step before the first point is read from the database
    only if `layout.newest` does not contain it.
    """
    events = {number: StoredEvent(number) for number in range(seq + 1, upper + 1)}
    found: Layout | None = None
    for row, number, at, values in _pieces(rows, seq, upper):
        found = found or layout()
        event = events[number]
        event.attempt = row.attempt
        if is_metric_group(row.group_name):
            steps = _logged_steps(row)[at : at + values.shape[1]]
            event.points += found.logged_points(row.group_name, steps, values)
            event.last_step, event.metrics = max(event.last_step, int(steps[-1])), True
            continue
        first, before = row.first_step + at * row.stride, None
        if found.follows(row.group_name):
            before = _column_before(session, found, row.group_name, first)
        event.points += found.points(row.group_name, first, row.stride, values, before)
        last = first + (values.shape[1] - 1) * row.stride
        found.newest[row.group_name] = last, values[:, -1]
        event.last_step = max(event.last_step, last)
    for alert in alerts:
        events[alert.seq].alerts.append(alert)
    for change in changes:
        events[change.seq].transition = change
    for autopsy in autopsies:
        events[autopsy.seq].autopsy = autopsy
    return [e for e in events.values() if e.points or e.alerts or e.transition or e.autopsy]


def _column_before(session: Session, layout: Layout, group: str, step: int) -> np.ndarray | None:
    """The raw column (columns,) of the previous step; None if it was not recorded or cannot be read."""
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
        return None  # reading this block's own points reports the damage


def _logged_steps(row: BlockRow) -> np.ndarray:
    places = stored_places(row)
    assert places is not None  # `_pieces` has read the numbers of the block
    return places[0]


def _pieces(rows: Iterable[BlockRow], seq: int, upper: int) -> list[tuple[BlockRow, int, int, np.ndarray]]:
    """The raw points of events seq + 1..upper in order, as (block, event number, index of the first point in the block,
    values)."""
    found = []
    for row in rows:
        try:
            pieces = stored_pieces(row)
            chosen = np.flatnonzero((pieces[:, 0] > seq) & (pieces[:, 0] <= upper))
            values = stored_numbers(row) if len(chosen) else np.empty((row.column_count, 0), np.float32)
        except DamagedPayload as damage:
            log.error("%s: a live stream continues without them", damage)  # not raised, because the call also reads other runs
            continue
        ends = np.cumsum(pieces[:, 1])
        for i in chosen.tolist():
            at = int(ends[i] - pieces[i, 1])
            found.append((row, int(pieces[i, 0]), at, values[:, at : ends[i]]))
    return sorted(found, key=lambda part: (part[1], part[0].group_name, part[0].first_step + part[2] * part[0].stride))
