"""Compaction: the many short blocks of an ended run become few long ones, which take less room and are read faster.

What is read before and after is the same to the bit: raw points, every zoom level, exports, and the events of a live stream
that resumes (see stablessm_core.telemetry.merged). Each batch is one short transaction that swaps rows that have not changed
meanwhile: it holds the run's row and looks that no event was added since the plan was made. So a run that is resumed is left
alone at once, and a process that dies anywhere has merged either all or nothing of a batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import and_, delete, select, update
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.database.models import FINAL, BlockRow, Run
from server.database.payloads import NEEDED, DamagedPayload, checksum, stored_numbers, stored_pieces
from server.series.occupied import recount
from stablessm_core.telemetry.blocks import STATS
from stablessm_core.telemetry.merged import Span, pack

POINTS = 2048  # of a merged block
BYTES = 4 << 20  # of its numbers; wide groups get fewer points
SETTLED_SECONDS = 60.0  # since the end of the run: live viewers have read its last blocks by then

_BLOCKS = BlockRow.__table__.c
log = logging.getLogger(__name__)


class _Changed(RuntimeError):
    """The run went on, was deleted, or is being compacted by another process: what was planned no longer fits."""


@dataclass(frozen=True)
class _Batch:
    """Blocks of one group and level to be laid end to end."""

    group: str
    span: Span
    columns: int
    first_steps: tuple[int, ...]


def compact_next(database: Database, *, settled: float = SETTLED_SECONDS, pause: Callable[[], bool] | None = None) -> int | None:
    """Compact the oldest ended run that needs it; gives its number, None if there was none or it is not done.

    `pause` is called between two batches; when it gives True, the rest is left for another time.
    """
    with database.read() as session:
        ended = and_(Run.status.in_(FINAL), Run.compacted_at.is_(None), Run.finished_at < time.time() - settled)
        run_id = session.scalar(select(Run.id).where(ended).order_by(Run.id).limit(1))
    return run_id if run_id is not None and compact(database, run_id, pause=pause) else None


def compact(database: Database, run_id: int, *, pause: Callable[[], bool] | None = None) -> bool:
    """Merge the blocks of an ended run; True when it is done, False when the run went on meanwhile or `pause` said stop."""
    with database.read() as session:
        seq = session.scalar(select(Run.seq).where(Run.id == run_id, Run.status.in_(FINAL)))
        batches = plan(session, run_id)
    if seq is None:
        return False
    try:
        for batch in batches:
            if pause is not None and pause():
                return False
            _merge(database, run_id, seq, batch)
        with database.write() as session:
            _hold(session, run_id, seq).compacted_at = time.time()
            recount(session, run_id)
    except _Changed:
        return False
    return True


def plan(session: Session, run_id: int) -> list[_Batch]:
    """Which blocks are to be merged: neighbours without a gap, of one attempt, up to POINTS and BYTES."""
    fields = ("group_name", "level", "first_step", "stride", "point_count", "column_count", "attempt")
    chosen = select(*(_BLOCKS[name] for name in fields)).where(_BLOCKS.run_id == run_id)
    batches: list[_Batch] = []
    key: tuple[Any, ...] = ()
    span, steps = Span(0, 0, 1, 0), [0]
    for row in session.execute(chosen.order_by(_BLOCKS.group_name, _BLOCKS.level, _BLOCKS.first_step)):
        own, limit = Span(row.level, row.first_step, row.stride, row.point_count), _limit(row.level, row.column_count)
        same = (row.group_name, row.level, row.column_count, row.attempt)
        joined = span.joined(own) if same == key else None
        if joined is not None and joined.point_count <= limit:
            span = joined
            steps.append(row.first_step)
            continue
        batches += _batch(key, span, steps)
        key, span, steps = same, own, [row.first_step]
    return batches + _batch(key, span, steps)


def _batch(key: tuple[Any, ...], span: Span, steps: list[int]) -> list[_Batch]:
    return [_Batch(key[0], span, key[2], tuple(steps))] if len(steps) > 1 else []


def _limit(level: int, columns: int) -> int:
    return min(POINTS, max(1, BYTES // (4 * columns * (len(STATS) if level else 1))))


def _merge(database: Database, run_id: int, seq: int, batch: _Batch) -> None:
    first, last = batch.first_steps[0], batch.first_steps[-1]
    place = and_(BlockRow.run_id == run_id, BlockRow.group_name == batch.group, BlockRow.level == batch.span.level)
    content = select(*NEEDED, _BLOCKS.seq)
    with database.read() as session:
        rows = session.execute(content.where(place, BlockRow.first_step.between(first, last)).order_by(_BLOCKS.first_step)).all()
    if tuple(row.first_step for row in rows) != batch.first_steps or sum(r.point_count for r in rows) != batch.span.point_count:
        raise _Changed
    try:
        payload = _joined(rows)
    except DamagedPayload as damage:
        log.error("%s: these blocks are not merged", damage)
        return
    whole = checksum(payload, rows[0].attempt, batch.span.point_count)
    with database.write() as session:
        _hold(session, run_id, seq)
        gone = delete(BlockRow).where(place, BlockRow.first_step > first, BlockRow.first_step <= last)
        removed = (
            session.execute(gone.returning(BlockRow.point_count).execution_options(synchronize_session=False)).scalars().all()
        )
        kept = (
            update(BlockRow)
            .where(place, BlockRow.first_step == first, BlockRow.point_count == rows[0].point_count)
            .values(stride=batch.span.stride, point_count=batch.span.point_count, last_step=rows[-1].last_step, seq=rows[-1].seq)
            .values(payload=payload, checksum=whole)
            .returning(BlockRow.first_step)
            .execution_options(synchronize_session=False)
        )
        changed = session.execute(kept).all()
        if len(changed) != 1 or sum(removed) + rows[0].point_count != batch.span.point_count or len(removed) != len(rows) - 1:
            raise _Changed


def _joined(rows: Any) -> bytes:
    values, pieces = [stored_numbers(row) for row in rows], [stored_pieces(row) for row in rows]
    return pack(np.concatenate(values, axis=-1), np.concatenate(pieces))


def _hold(session: Session, run_id: int, seq: int) -> Run:
    run = session.scalars(
        select(Run).where(Run.id == run_id, Run.status.in_(FINAL), Run.seq == seq).with_for_update()
    ).one_or_none()
    if run is None:
        raise _Changed
    return run
