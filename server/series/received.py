"""Stores the blocks and alerts that a program reports. The caller has locked the run's row.

Every block is compared with the run's catalogue and with the steps that are stored already. A block that ends at or before the
last stored step of its group and level is a repeat and is left out, so a program may post the same records again. The payloads
are stored as they came.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, cast

from sqlalchemy import BigInteger, ColumnElement, Float, Table, Text, bindparam, case, func, insert, select, update
from sqlalchemy.orm import Session

from server.database.models import AlertRow, BlockRow, Run, SeriesRow
from server.series.alerts import insert_alerts
from server.series.last_values import newest_values, with_new_values_text
from server.series.recording import block_row, more_extreme
from stablessm_core.telemetry.blocks import BUCKET, LEVELS
from stablessm_core.telemetry.detectors import Alert
from stablessm_core.telemetry.free_json import Refused
from stablessm_core.telemetry.series import DERIVED_GROUPS, SO_FAR
from stablessm_core.telemetry.strict_messages import PackedBlock, PackedFlush

REMEMBERED = 1000  # runs whose catalogue and last steps a process keeps in memory
MAX_ALERTS = 10_000  # alerts of a run; later alerts are left out
ALERTS_AT_ONCE = 1000  # alerts that the server raises for one event; further alerts are left out
# recorded points of a group that no coarser level covers. A page reads all of them at once.
MAX_UNCOVERED = 1 << 18
_RUN, _BLOCK = cast(Table, Run.__table__), cast(Table, BlockRow.__table__)
_INSERT = insert(_BLOCK)
STATE = (_RUN.c.seq, _RUN.c.step, _RUN.c.cancel_requested)


class RunState(NamedTuple):
    """The columns STATE of a run's row."""

    seq: int
    step: int
    cancel_requested: bool


@dataclass
class StoredPlaces:
    """What is stored of a run, so far as the next block depends on it.

    seq: the number of the run's newest event when this was read. columns: of the blocks of a group, keyed by (group, raw).
    indices: the columns of each group that hold numbers of eigenvalues. last_steps, points: keyed by (group, level).
    """

    seq: int
    columns: dict[tuple[str, bool], int] = field(default_factory=dict)
    indices: dict[str, list[slice]] = field(default_factory=dict)
    last_steps: dict[tuple[str, int], int] = field(default_factory=dict)
    points: dict[tuple[str, int], int] = field(default_factory=dict)

    def read_catalogue(self, session: Session, run_id: int) -> None:
        """Read the run's catalogue again."""
        self.columns, self.indices = {}, {}
        rows = select(SeriesRow.name, SeriesRow.group_name, SeriesRow.column_offset, SeriesRow.width, SeriesRow.derived)
        for name, group, offset, width, derived in session.execute(rows.where(SeriesRow.run_id == run_id)):
            for raw in (False,) if derived else (False, True):
                self.columns[group, raw] = max(self.columns.get((group, raw), 0), offset + width)
            if name.endswith("_index") and not group.endswith(DERIVED_GROUPS):
                self.indices.setdefault(group, []).append(slice(offset, offset + width))

    def read_steps(self, session: Session, run_id: int) -> None:
        """Read again which steps of each group and level are stored."""
        self.last_steps, self.points = {}, {}
        places = select(BlockRow.group_name, BlockRow.level, func.max(BlockRow.last_step), func.sum(BlockRow.point_count))
        grouped = places.where(BlockRow.run_id == run_id).group_by(BlockRow.group_name, BlockRow.level)
        for group, level, last, points in session.execute(grouped):
            self.last_steps[group, level], self.points[group, level] = int(last), int(points)

    def knows(self, block: PackedBlock) -> bool:
        """True if the catalogue that was read has the block's group."""
        return (block.group, block.level == 0) in self.columns

    def accept(self, name: str, block: PackedBlock) -> bool:
        """True if the block is new, False if it repeats stored steps. name: of the field that describes the block. Raises
        Refused."""
        columns = self.columns.get((block.group, block.level == 0))
        if columns is None:
            known = sorted({group for group, raw in self.columns if raw == (block.level == 0)})
            listed = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
            raise Refused(f"{name}.group", repr(block.group), listed or "a group of the catalogue, which is sent first")
        if block.columns != columns:
            raise Refused(f"{name}.shape", f"{block.columns:,} columns", f"{columns:,}, as in the catalogue")
        place = block.group, block.level
        last = self.last_steps.get(place, -1)
        if block.last_step <= last:
            return False
        if block.first_step <= last:
            raise Refused(f"{name}.first_step", f"{block.first_step:,}", f"more than {last:,}, the last stored step")
        for chosen in self.indices.get(block.group, ()) if block.level == 0 else ():
            numbers = block.decoded(chosen)
            if not ((numbers >= 0) & (numbers < 2**31)).all():
                raise Refused(f"{name}.payload", "the number of an eigenvalue that cannot exist", "0 to 2,147,483,647")
        self._count(name, block)
        self.last_steps[place] = block.last_step
        return True

    def _count(self, name: str, block: PackedBlock) -> None:
        place, above = (block.group, block.level), (block.group, block.level + 1)
        points = self.points.get(place, 0) + block.point_count
        uncovered = points - BUCKET * self.points.get(above, 0)
        if uncovered > MAX_UNCOVERED and block.level < LEVELS and not block.group.endswith(DERIVED_GROUPS):
            allowed = f"at most {MAX_UNCOVERED:,} points of a level without the level above"
            raise Refused(f"{name}.level", f"{block.level} for point {points:,}", allowed)
        self.points[place] = points


class PlacesCache:
    """The StoredPlaces of the runs to which this process stored last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, StoredPlaces] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, session: Session, run_id: int, seq: int) -> StoredPlaces:
        """What is stored of the run whose newest event is `seq`. The caller gives it back with `keep` after the commit."""
        with self._lock:
            known = self._kept.pop(run_id, None)
        if known is None:
            known = StoredPlaces(seq)
            known.read_catalogue(session, run_id)
            known.read_steps(session, run_id)
        elif known.seq != seq:  # another process stored something, or steps were deleted
            known.read_catalogue(session, run_id)
            known.read_steps(session, run_id)
        return known

    def keep(self, run_id: int, places: StoredPlaces, seq: int) -> None:
        places.seq = seq
        with self._lock:
            self._kept[run_id] = places
            while len(self._kept) > REMEMBERED:
                self._kept.popitem(last=False)


def insert_event(
    session: Session, run_id: int, attempt: int, blocks: Sequence[PackedBlock], flushes: Sequence[PackedFlush],
    more: Sequence[Alert] = (), *, late: bool,
) -> RunState:  # fmt: skip
    """Store the new blocks and the alerts of these flushes as one event, and return the run's state. If all of it is stored
    already, the event takes no number. It counts as a heartbeat.

    more: alerts that the server raised itself. late: True if the run has ended. Its blocks are then merged and judged again.
    """
    rows = [block_row(run_id, attempt, block, block.columns, block.payload) for block in blocks]
    dialect = session.get_bind().dialect.name
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
    if rows:  # no row can exist already: `accept` has compared them with all stored steps, under the lock of the run
        connection.execute(_INSERT, [row | {"seq": state.seq} for row in rows])
    new = len(rows)
    new += insert_bounded(session, run_id, attempt, more, state.seq)
    new += insert_bounded(session, run_id, attempt, [alert for flush in flushes for alert in flush.alerts], state.seq)
    if new == 0:  # nobody has seen the number, because the row is still locked
        state = state._replace(seq=state.seq - 1)
        connection.execute(update(_RUN).where(_RUN.c.id == run_id).values(seq=state.seq))
    return state


def insert_bounded(session: Session, run_id: int, attempt: int, alerts: Sequence[Alert], seq: int) -> int:
    """`insert_alerts` for at most ALERTS_AT_ONCE alerts, and no more than the run may have."""
    if not alerts:
        return 0
    stored = session.scalar(select(func.count()).where(AlertRow.run_id == run_id)) or 0
    return insert_alerts(session, run_id, attempt, alerts[: max(0, min(ALERTS_AT_ONCE, MAX_ALERTS - stored))], seq)


def ends_with(session: Session, run: Run, flushes: Sequence[PackedFlush]) -> bool:
    """True if these flushes have blocks, all of them are stored byte for byte, and no later step of the run is stored."""
    blocks = [block for flush in flushes for block in flush.blocks]
    if not blocks or run.step != max(flush.step for flush in flushes):
        return False
    for block in blocks:
        stored = session.get(BlockRow, (run.id, block.group, block.level, block.first_step))
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
    values |= {name: more_extreme(name, bindparam(name, type_=Float(53))) for name in SO_FAR if name in given}
    if "newest" in given:
        values["last_values"] = with_new_values_text(bindparam("newest", type_=Text), dialect)
    if "rate" in given:
        values["steps_per_second"] = bindparam("rate", type_=Float(53))
    if again:
        values |= {"compacted_at": None, "judged_at": None}
    return update(_RUN).where(_RUN.c.id == bindparam("run")).values(values).returning(*STATE)
