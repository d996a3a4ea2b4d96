"""Stores the recorded data of a run: catalogue, blocks, alerts, checkpoints. Also deletes steps.

The caller has locked the run's row under the fence of its attempt (server.ingest.post).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    Table,
    Text,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session

from server.database.fence import add_transition, insert_into, lock_run
from server.database.models import BlockRow, CheckpointRow, Run, SeriesRow, Transition
from server.database.payloads import DamagedPayload, checksum, stored_numbers, stored_pieces, stored_places
from server.series.alerts import insert_bounded
from server.series.forms import distinct
from server.series.last_values import newest_values, refresh_last_values, with_new_values
from server.series.occupied import checkpoint_bytes, recount
from server.series.rules import forget_steps
from stablessm_core.telemetry.blocks import BUCKET, PackedBlock
from stablessm_core.telemetry.detectors import Alert
from stablessm_core.telemetry.merged_payloads import cut, pack
from stablessm_core.telemetry.metrics import MAX_METRICS, is_metric_group
from stablessm_core.telemetry.scattered import pack_scattered
from stablessm_core.telemetry.series import DERIVED_GROUPS, SO_FAR, SeriesSpec
from stablessm_core.telemetry.sink import Flush

_RUN, _BLOCK = cast(Table, Run.__table__), cast(Table, BlockRow.__table__)
_INSERT = insert(_BLOCK)
STATE = (_RUN.c.seq, _RUN.c.step, _RUN.c.cancel_requested)

log = logging.getLogger(__name__)


class RunState(NamedTuple):
    """The columns STATE of a run's row."""

    seq: int
    step: int
    cancel_requested: bool


def insert_event(
    session: Session, run_id: int, attempt: int, blocks: Sequence[PackedBlock], flushes: Sequence[Flush],
    more: Sequence[Alert] = (), *, late: bool = False,
) -> RunState:  # fmt: skip
    """Store the new blocks and the alerts of these flushes as one event, and return the run's state. The caller has locked the
    run's row. If all of it is stored already, the event takes no number, so `seq` has no gaps. It counts as a heartbeat.

    blocks: those whose steps are not stored yet. The run's row keeps the most extreme values of all steps, even if their steps
    are truncated later. more: alerts that the server raised itself. late: True if the run has ended. Its blocks are then merged
    and judged again.
    """
    rows = [block_row(run_id, attempt, block) for block in blocks]
    dialect = session.get_bind().dialect.name
    # `step` only grows here: repeating an older flush must not reset the progress (only `take_back` does)
    given: dict[str, Any] = {"run": run_id, "to_step": max(flush.step for flush in flushes)}
    given["new_bytes"] = sum(len(row["payload"]) for row in rows)
    for name, extreme in SO_FAR.items():
        if seen := [float(flush.so_far[name]) for flush in flushes if name in flush.so_far]:
            given[name] = extreme(seen)
    if newest := newest_values(blocks):
        given["newest"] = json.dumps(newest)
    if flushes[-1].steps_per_second is not None and not late:
        given["rate"] = flushes[-1].steps_per_second
    session.flush()
    connection = session.connection()
    state = RunState(*connection.execute(_event(frozenset(given), dialect, again=late and bool(rows)), given).one())
    if rows:  # no row can exist already: the caller has compared them with all stored steps, under the lock of the run
        connection.execute(_INSERT, [row | {"seq": state.seq} for row in rows])
    new = len(rows)
    new += insert_bounded(session, run_id, attempt, more, state.seq)
    new += insert_bounded(session, run_id, attempt, [alert for flush in flushes for alert in flush.alerts], state.seq)
    if new == 0:  # nobody has seen the number, because the row is still locked
        state = state._replace(seq=state.seq - 1)
        connection.execute(update(_RUN).where(_RUN.c.id == run_id).values(seq=state.seq))
    return state


def is_stored(session: Session, run_id: int, blocks: Sequence[PackedBlock]) -> bool:
    """True if all of these blocks are stored byte for byte."""
    for block in blocks:
        stored = session.get(BlockRow, (run_id, block.group, block.level, block.first_step))
        if stored is None or stored.payload != block.payload:
            return False
    return True


@lru_cache(64)
def _event(given: frozenset[str], dialect: str, *, again: bool) -> Any:
    """The statement that takes the next event number, with the named values as parameters. It is built once, because building it
    takes longer than executing it. again: True if the ended run must be merged and judged again."""
    step: ColumnElement[int] = bindparam("to_step", type_=BigInteger)
    values: dict[str, Any] = {"seq": _RUN.c.seq + 1, "beat": _RUN.c.beat + 1}
    values["step"] = case((_RUN.c.step > step, _RUN.c.step), else_=step)
    values["bytes_stored"] = _RUN.c.bytes_stored + bindparam("new_bytes", type_=BigInteger)
    values |= {name: _more_extreme(name) for name in SO_FAR if name in given}
    if "newest" in given:
        values["last_values"] = with_new_values(bindparam("newest", type_=Text), dialect)
    if "rate" in given:
        values["steps_per_second"] = bindparam("rate", type_=Float(53))
    if again:
        values |= {"compacted_at": None, "judged_at": None}
    return update(_RUN).where(_RUN.c.id == bindparam("run")).values(values).returning(*STATE)


def _more_extreme(name: str) -> Any:
    """The value of the run's column `name` of SO_FAR after the parameter of this name was seen, as an SQL expression."""
    column, new = _RUN.c[name], bindparam(name, type_=Float(53))
    return case((or_(column.is_(None), column < new if SO_FAR[name] is max else column > new), new), else_=column)


def add_series(session: Session, run: Run, series: Sequence[SeriesSpec]) -> None:
    """Store the catalogue, or additions to it. The caller has locked the run's row. Raises ValueError if a known series is
    described differently.

    Columns are assigned in the given order, recorded series before derived series. All series of a group must be passed in one
    call.
    """
    run_id = run.id
    known = {row.name: row for row in session.scalars(select(SeriesRow).where(SeriesRow.run_id == run_id))}
    groups = {row.group_name for row in known.values()}
    columns: dict[str, int] = {}
    for item in sorted(series, key=lambda s: s.derived):  # a stable sort: recorded series first, otherwise in the given order
        offset = columns.get(item.group, 0)
        columns[item.group] = offset + item.width
        row = SeriesRow(
            run_id=run_id,
            name=item.name,
            group_name=item.group,
            column_offset=offset,
            width=item.width,
            unit=item.unit,
            derived=item.derived,
            form=item.form,
        )
        old = known.get(item.name)
        if old is not None and is_metric_group(old.group_name) and not is_metric_group(item.group):
            # the program logged this name before it recorded a series of this name: the logged values get another name
            del known[item.name]
            old.name = next(name for i in range(2, MAX_METRICS + 2) if (name := f"{item.name[:100]} ({i})") not in known)
            known[old.name] = old
            session.flush()
            old = None
        if old is None and item.group in groups:
            raise ValueError(f"series {item.name!r} is new in group {item.group!r}, whose columns are fixed; use another group")
        if old is None:
            session.add(row)
        elif (old.group_name, old.column_offset, old.width, old.derived) != (
            row.group_name,
            row.column_offset,
            row.width,
            row.derived,
        ):
            raise ValueError(
                f"series {item.name!r} is {row.group_name}[{row.column_offset}:+{row.width}]; run {run_id} has it as "
                f"{old.group_name}[{old.column_offset}:+{old.width}]"
            )
        elif old.form is None:  # an older program stored this series
            old.form = item.form
        elif item.form not in (None, old.form):
            raise ValueError(f"series {item.name!r} has the form {item.form}; run {run_id} has it with {old.form}")
    of_layers = (item.form for item in series if not item.group.endswith(DERIVED_GROUPS))
    if forms := distinct([*(run.forms or []), *of_layers]):
        run.forms = forms
    session.flush()


def store_checkpoint(
    session: Session, run_id: int, attempt: int, step: int, path: str, sha256: str, size: int = 0
) -> None:  # fmt: skip
    """Record the checkpoint after step `step`, whose file is safely on disk. path: relative to the data directory. size: of the
    file, in bytes.

    Raises LeaseLost, and ValueError if the telemetry up to `step` is not stored yet, because a resume from this checkpoint
    would leave a gap in the telemetry.
    """
    run = lock_run(session, run_id, attempt)
    if run.step < step:
        raise ValueError(f"checkpoint of step {step} comes before its telemetry: run {run_id} is stored up to step {run.step}")
    newest = session.scalar(select(func.max(CheckpointRow.step)).where(CheckpointRow.run_id == run_id))
    if newest is None or step > newest:
        run.workers_lost = 0  # a new checkpoint is progress, so the count of lost workers starts again
    values = {
        "run_id": run_id,
        "step": step,
        "attempt": attempt,
        "path": path,
        "sha256": sha256,
        "bytes": size,
        "created_at": time.time(),
        "stored_at": None,
    }
    before = checkpoint_bytes(session, run_id)
    statement = insert_into(session, CheckpointRow).values(values)
    session.execute(statement.on_conflict_do_update(index_elements=["run_id", "step"], set_=values))
    run.bytes_stored += checkpoint_bytes(session, run_id) - before


def take_back(session: Session, run: Run, from_step: int, reason: str, *, stored_again: bool = False) -> int:
    """Delete the steps from `from_step` on (after a rollback or an unreadable checkpoint) and return the new `seq`. The caller
    has locked the run's row.

    Blocks and checkpoints of these steps are deleted, and a raw block that contains `from_step` is cut. Alerts are kept, because
    the reported events did happen. A transition with `truncated_from` notifies every viewer. A repeated call with the same
    `reason` changes nothing until later steps are stored, or if the same post stored them (`stored_again`).
    """
    same = {"run_id": run.id, "attempt": run.attempt, "reason": reason, "truncated_from": from_step}
    nothing_since = run.step < from_step or stored_again
    if nothing_since and session.scalar(select(Transition.seq).filter_by(**same).limit(1)) is not None:
        return run.seq  # the caller repeats a call whose response it lost
    delete_steps(session, run.id, from_step)
    run.step = min(run.step, from_step - 1)
    return add_transition(session, run, reason, truncated_from=from_step)


def delete_steps(session: Session, run_id: int, from_step: int) -> bool:
    """Delete the stored values of `from_step` and later steps. Returns True if any values were stored.

    A raw block that contains the step is cut there; a merged block of a coarse level is cut at the end of one of the original
    blocks. Values that are computed from two steps are also deleted at step `from_step` - 1, because the next step no longer
    exists.
    """
    follows = and_(BlockRow.group_name.endswith(DERIVED_GROUPS), BlockRow.last_step >= from_step - 1)
    late = and_(BlockRow.run_id == run_id, or_(BlockRow.last_step >= from_step, follows))
    straddling = session.scalars(select(BlockRow).where(late, BlockRow.first_step < from_step)).all()
    for row in straddling:
        _shorten(row, from_step - 1 if row.group_name.endswith(DERIVED_GROUPS) else from_step)
    session.flush()
    removed = session.execute(delete(BlockRow).where(late).returning(BlockRow.level)).all()
    session.execute(delete(CheckpointRow).where(CheckpointRow.run_id == run_id, CheckpointRow.step >= from_step))
    recount(session, run_id)
    if straddling or removed:
        refresh_last_values(session, run_id)
        if (run := session.get(Run, run_id)) is not None:
            forget_steps(run, from_step)
        known = update(Run).where(Run.id == run_id, func.length(Run.detector_state) > 0).values(detector_state=None)
        session.execute(known.execution_options(synchronize_session=False))
    return bool(straddling or removed)


def _shorten(row: BlockRow, from_step: int) -> None:
    # If no part of the row can be kept or read, the row stays unchanged, and the caller deletes it because it ends too late.
    if is_metric_group(row.group_name):
        _shorten_metrics(row, from_step)
        return
    tail = row.stride - row.stride // BUCKET**row.level  # distance from the first to the last step of a bucket; 0 for a point
    kept = max(0, (from_step - 1 - tail - row.first_step) // row.stride + 1)
    try:
        pieces, values = cut(stored_pieces(row), kept, whole=row.level > 0), stored_numbers(row)
    except DamagedPayload as damage:
        log.error("%s: they are deleted with the steps after them", damage)
        return
    if not len(pieces):
        return
    row.point_count, row.seq = int(pieces[:, 1].sum()), int(pieces[-1, 0])
    row.payload = pack(values[..., : row.point_count], pieces)
    row.checksum = checksum(row.payload, row.attempt, row.point_count)
    row.last_step = row.first_step + (row.point_count - 1) * row.stride + tail


def _shorten_metrics(row: BlockRow, from_step: int) -> None:
    try:
        places, values = stored_places(row), stored_numbers(row)
    except DamagedPayload as damage:
        log.error("%s: they are deleted with the steps after them", damage)
        return
    if places is None or not (early := places[0] < from_step).any():
        return
    steps, events = places[0][early], places[1][early]
    row.payload, row.point_count = pack_scattered(values[:, early], steps, events), int(early.sum())
    row.last_step, row.seq = int(steps.max()), int(events[-1])
    row.checksum = checksum(row.payload, row.attempt, row.point_count)


def block_row(run_id: int, attempt: int, block: PackedBlock) -> dict[str, Any]:
    """The database row of a block."""
    return {
        "run_id": run_id,
        "group_name": block.group,
        "level": block.level,
        "first_step": block.first_step,
        "last_step": block.last_step,
        "stride": block.stride,
        "point_count": block.point_count,
        "column_count": block.columns,
        "attempt": attempt,
        "payload": block.payload,
        "checksum": checksum(block.payload, attempt, block.point_count),
    }
