"""The check of a block against its run: the columns of the catalogue, and the steps that are stored already.

A block that ends at or before the last stored step of its group and level is a repeat and is left out, so the same message may be
stored again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from server.database.models import BlockRow, SeriesRow
from stablessm_core.telemetry.blocks import BUCKET, LEVELS, STATS, PackedBlock
from stablessm_core.telemetry.free_json import Refused
from stablessm_core.telemetry.limits import MAX_NUMBER, MAX_UNCOVERED
from stablessm_core.telemetry.series import DERIVED_GROUPS

REMEMBERED = 1000  # runs whose catalogue and last steps a process keeps in memory
_CATALOGUE = ("name", "group_name", "column_offset", "width", "derived")


class Columns:
    """The columns of the blocks of each group, from the rows of the table `series`.

    counts: keyed by (group, raw); coarse blocks (raw False) also contain derived series. indices: the columns of each group that
    hold numbers of eigenvalues.
    """

    def __init__(self, series: Iterable[Mapping[Any, Any]] = ()) -> None:
        self.counts: dict[tuple[str, bool], int] = {}
        self.indices: dict[str, list[slice]] = {}
        for row in series:
            group, first, end = row["group_name"], row["column_offset"], row["column_offset"] + row["width"]
            for raw in (False,) if row["derived"] else (False, True):
                self.counts[group, raw] = max(self.counts.get((group, raw), 0), end)
            if row["name"].endswith("_index") and not group.endswith(DERIVED_GROUPS):
                self.indices.setdefault(group, []).append(slice(first, end))

    def number_problem(self, group: str, level: int, values: np.ndarray) -> tuple[str, str] | None:
        """What the numbers of a block cannot be, and what is allowed; None if they are possible. values: of every column."""
        if level:
            lost = values[:, STATS.index("nonfinite")]
            if not ((lost >= 0) & (lost <= BUCKET**level)).all():
                return "an impossible number of non-finite values", f"0 to {BUCKET**level:,}"
        for columns in self.indices.get(group, ()) if level == 0 else ():
            if not ((values[columns] >= 0) & (values[columns] <= MAX_NUMBER)).all():
                return "the number of an eigenvalue that cannot exist", f"0 to {MAX_NUMBER:,}"
        return None


@dataclass
class StoredPlaces:
    """What is stored of a run, so far as the next block depends on it.

    seq: the number of the run's newest event when this was read. last_steps, points: keyed by (group, level). catalogue: for the
    built-in alerts (server.ingest.alerts), once it was read. own_alerts: True if the program computes its alerts itself.
    """

    seq: int
    columns: Columns = field(default_factory=Columns)
    last_steps: dict[tuple[str, int], int] = field(default_factory=dict)
    points: dict[tuple[str, int], int] = field(default_factory=dict)
    catalogue: Any = None
    own_alerts: bool = False

    def read(self, session: Session, run_id: int) -> None:
        """Read the run's catalogue and steps again."""
        self.own_alerts = False
        self.read_catalogue(session, run_id)
        self.read_steps(session, run_id)

    def read_catalogue(self, session: Session, run_id: int) -> None:
        """Read the run's catalogue again."""
        self.catalogue = None
        columns = SeriesRow.__table__.c
        rows = select(*(columns[name] for name in _CATALOGUE)).where(columns.run_id == run_id)
        self.columns = Columns(session.execute(rows).mappings())

    def read_steps(self, session: Session, run_id: int) -> None:
        """Read again which steps of each group and level are stored."""
        self.last_steps, self.points = {}, {}
        places = select(BlockRow.group_name, BlockRow.level, func.max(BlockRow.last_step), func.sum(BlockRow.point_count))
        grouped = places.where(BlockRow.run_id == run_id).group_by(BlockRow.group_name, BlockRow.level)
        for group, level, last, points in session.execute(grouped):
            self.last_steps[group, level], self.points[group, level] = int(last), int(points)

    def knows(self, block: PackedBlock) -> bool:
        """True if the catalogue that was read has the block's group."""
        return (block.group, block.level == 0) in self.columns.counts

    def accept(self, name: str, block: PackedBlock) -> bool:
        """True if the block is new, False if it repeats stored steps. name: of the field that describes the block. Raises
        Refused."""
        raw = block.level == 0
        columns = self.columns.counts.get((block.group, raw))
        if columns is None:
            known = sorted({group for group, of in self.columns.counts if of == raw})
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
        of_eigenvalues = raw and block.group in self.columns.indices
        if of_eigenvalues and (problem := self.columns.number_problem(block.group, 0, block.values)) is not None:
            raise Refused(f"{name}.payload", *problem)
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
        if known is None or known.seq != seq:  # another process stored something, or steps were deleted
            known = known or StoredPlaces(seq)
            known.read(session, run_id)
        return known

    def keep(self, run_id: int, places: StoredPlaces, seq: int) -> None:
        places.seq = seq
        with self._lock:
            self._kept[run_id] = places
            while len(self._kept) > REMEMBERED:
                self._kept.popitem(last=False)
