"""Compaction merges the many short blocks of an ended run into a few long blocks, which take less space and are read faster.

Every read returns the same bits before and after compaction: raw points, each zoom level, exports, and the events of a live
stream that reconnects (see stablessm_core.telemetry.merged_payloads). Each batch is one short transaction. It locks the run's
row and checks that no event was added after the plan was made. So compaction stops at once when the run is resumed, and a
process that dies has merged either a whole batch or none of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from sqlalchemy import and_, delete, select, update
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.database.models import BlockRow, Run
from server.database.payloads import NEEDED, DamagedPayload, checksum, stored_numbers, stored_pieces
from server.database.single_runs import try_for_run
from server.series.occupied import recount
from stablessm_core.telemetry.blocks import STATS
from stablessm_core.telemetry.merged_payloads import Span, pack
from stablessm_core.telemetry.metrics import METRIC_GROUPS
from stablessm_core.telemetry.statuses import FINAL

POINTS = 2048  # maximum number of points per merged block
BYTES = 4 << 20  # maximum uncompressed size of a merged block, in bytes; blocks of wide groups have fewer points
SETTLED_SECONDS = 60.0  # waiting time after the end of a run, so that live viewers have read its last blocks

_BLOCKS = BlockRow.__table__.c
log = logging.getLogger(__name__)


class _Changed(RuntimeError):
    """The plan is out of date: the run was resumed or deleted, or another process compacts it."""


@dataclass(frozen=True)
class _Batch:
    """Blocks of one group and level that become one block."""

    group: str
    span: Span
    columns: int
    first_steps: tuple[int, ...]


def compact_next(
    database: Database, *, settled: float = SETTLED_SECONDS, pause: Callable[[], bool] | None = None,
    failed: set[int] | None = None,
) -> int | None:  # fmt: skip
    """Compact the oldest ended run that is not yet compacted. Returns the run's id, or None if there was no such run or its
    compaction was not completed.

    `pause` is called before each batch. If it returns True, the remaining batches wait for a later call.
    failed: runs to leave out. A run whose compaction fails is added, and the next run is compacted.
    """
    failed = set() if failed is None else failed
    while True:
        with database.read() as session:
            ended = and_(Run.status.in_(FINAL), Run.compacted_at.is_(None), Run.finished_at < time.time() - settled)
            run_id = session.scalar(select(Run.id).where(ended, Run.id.not_in(failed)).order_by(Run.id).limit(1))
        if run_id is None:
            return None
        complete = try_for_run(run_id, "compaction", partial(compact, database, run_id, pause=pause), None)
        if complete is not None:
            return run_id if complete else None
        failed.add(run_id)


def compact(database: Database, run_id: int, *, pause: Callable[[], bool] | None = None) -> bool:
    """Merge the blocks of an ended run. Returns False if the run was resumed or `pause` returned True, else True."""
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
            _lock_unchanged(session, run_id, seq).compacted_at = time.time()
            recount(session, run_id)
    except _Changed:
        return False
    return True


def plan(session: Session, run_id: int) -> list[_Batch]:
    """The batches to merge: neighbouring blocks of one attempt without gaps, up to POINTS points and BYTES bytes."""
    fields = ("group_name", "level", "first_step", "stride", "point_count", "column_count", "attempt")
    chosen = select(*(_BLOCKS[name] for name in fields)).where(_BLOCKS.run_id == run_id)
    chosen = chosen.where(_BLOCKS.group_name.not_like(f"{METRIC_GROUPS}%"))  # these blocks are long and have steps of their own
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
    same_level = and_(BlockRow.run_id == run_id, BlockRow.group_name == batch.group, BlockRow.level == batch.span.level)
    content = select(*NEEDED, _BLOCKS.seq)
    with database.read() as session:
        between = BlockRow.first_step.between(first, last)
        rows = session.execute(content.where(same_level, between).order_by(_BLOCKS.first_step)).all()
    if tuple(row.first_step for row in rows) != batch.first_steps or sum(r.point_count for r in rows) != batch.span.point_count:
        raise _Changed
    try:
        payload = _joined(rows)
    except DamagedPayload as damage:
        log.error("%s: compaction leaves these blocks unchanged", damage)
        return
    whole = checksum(payload, rows[0].attempt, batch.span.point_count)
    with database.write() as session:
        _lock_unchanged(session, run_id, seq)
        gone = delete(BlockRow).where(same_level, BlockRow.first_step > first, BlockRow.first_step <= last)
        removed = (
            session.execute(gone.returning(BlockRow.point_count).execution_options(synchronize_session=False)).scalars().all()
        )
        kept = (
            update(BlockRow)
            .where(same_level, BlockRow.first_step == first, BlockRow.point_count == rows[0].point_count)
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


def _lock_unchanged(session: Session, run_id: int, seq: int) -> Run:
    """Lock the run's row and return it. Raises _Changed if the run has changed."""
    run = session.scalars(
        select(Run).where(Run.id == run_id, Run.status.in_(FINAL), Run.seq == seq).with_for_update()
    ).one_or_none()
    if run is None:
        raise _Changed
    return run
