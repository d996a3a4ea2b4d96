"""Fetches stored blocks for many reads at once with few queries, and decodes each block once.

Every read is a plan (server.series.plans) that names the blocks it needs next. `run_queries` runs one query per round, which
fetches the blocks for all plans, until no plan needs more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import BigInteger, Row, Select, and_, bindparam, case, func, or_, select
from sqlalchemy.orm import Session

from server.database.models import BlockRow
from server.database.payloads import NEEDED, stored_numbers
from server.series.plans import BlockRequest, ReadPlan, Result, Selection
from stablessm_core.telemetry.metrics import METRIC_GROUPS

RANGES_PER_QUERY = 128
LAST_STEP = 2**62
_BLOCKS = BlockRow.__table__.c

# These expressions are built once, because composing a statement costs as much as running it.
_LOW, _HIGH = bindparam("low", type_=BigInteger), bindparam("high", type_=BigInteger)
_BEFORE = case((_BLOCKS.first_step >= _LOW, 0), else_=_LOW - _BLOCKS.first_step)
_UP_TO = case((_BLOCKS.last_step <= _HIGH, _BLOCKS.last_step), else_=_HIGH) - _BLOCKS.first_step
# Counts the points inside the bounds exactly, because the result must not depend on block boundaries: compaction moves them.
# Blocks of free metrics are not moved; all points of such a block are counted, because its steps are in its payload.
_INSIDE = _UP_TO // _BLOCKS.stride - (_BEFORE + _BLOCKS.stride - 1) // _BLOCKS.stride + 1
_POINTS = func.sum(case((_BLOCKS.group_name.like(f"{METRIC_GROUPS}%"), _BLOCKS.point_count), else_=_INSIDE))
_EXTENTS = (
    select(_BLOCKS.run_id, _BLOCKS.group_name, func.min(_BLOCKS.first_step), func.max(_BLOCKS.last_step), _POINTS)
    .where(
        _BLOCKS.run_id.in_(bindparam("runs", expanding=True)),
        _BLOCKS.group_name.in_(bindparam("groups", expanding=True)),
        _BLOCKS.level == 0,
        _BLOCKS.first_step <= _HIGH,
        _BLOCKS.last_step >= _LOW,
    )
    .group_by(_BLOCKS.run_id, _BLOCKS.group_name)
)


class Extent(NamedTuple):
    """First and last recorded step of a series inside given bounds, and the number of points inside these bounds."""

    low: int
    high: int
    points: int


def read_extents(
    session: Session, selections: Sequence[Selection], from_step: int | None = None, to_step: int | None = None
) -> list[Extent]:
    """The extent of each selection between the two steps, from one query."""
    asked = {"low": from_step or 0, "high": LAST_STEP if to_step is None else to_step}
    runs, groups = {one.run_id for one in selections}, {one.group(0) for one in selections}
    found = session.execute(_EXTENTS, asked | {"runs": sorted(runs), "groups": sorted(groups)}) if selections else ()
    known = {(row[0], row[1]): Extent(*row[2:]) for row in found}
    return [_extent(one, known.get((one.run_id, one.group(0))), asked["low"], asked["high"]) for one in selections]


def _extent(selection: Selection, group: Extent | None, from_step: int, to_step: int) -> Extent:
    if group is None:
        return Extent(0, -1, 0)
    low, high, points = max(group.low, from_step), min(group.high, to_step), int(group.points)
    if selection.row.steps_ahead and high == group.high:  # a value needs the next step, so the newest step has no value
        return Extent(low, high - 1, max(0, points - 1))
    return Extent(low, high, points)


def run_queries(session: Session, plans: Sequence[ReadPlan[Result]]) -> list[Result]:
    """The result of each plan. All plans share the queries and the decoded blocks."""
    cache = BlockCache(session, [plan.selection for plan in plans])
    while waiting := [(plan, request) for plan in plans if (request := plan.request) is not None]:
        found = cache.fetch([request for _, request in waiting])
        for plan, request in waiting:
            plan.add(found[request], partial(cache.numbers, selection=plan.selection))
    return [plan.result() for plan in plans]


class BlockCache:
    """Fetches blocks for some selections. Blocks from which several selections read columns are decoded once and kept."""

    def __init__(self, session: Session, selections: Iterable[Selection]) -> None:
        self.session = session
        self._columns: dict[tuple[int, str, bool], slice] = {}  # the columns that selections read in raw and in coarse blocks
        self._readers: Counter[tuple[int, str, bool]] = Counter()
        self._decoded: dict[tuple[int, str, int, int], np.ndarray] = {}
        for selection in selections:
            for level in (0, 1):
                key, own = (selection.run_id, selection.group(level), level > 0), selection.block_columns(level)
                known = self._columns.get(key, own)
                self._columns[key] = slice(min(known.start, own.start), max(known.stop, own.stop))
                self._readers[key] += 1

    def fetch(self, requests: Sequence[BlockRequest]) -> dict[BlockRequest, list[Row[Any]]]:
        """The blocks of each request in the order of their steps, fetched with RANGES_PER_QUERY step ranges per query."""
        wanted = list(dict.fromkeys((one.run_id, one.group, one.level, *steps) for one in requests for steps in one.ranges))
        rows: dict[tuple[int, str, int], dict[int, Row[Any]]] = {}
        for at in range(0, len(wanted), RANGES_PER_QUERY):
            part = wanted[at : at + RANGES_PER_QUERY]
            size = 1 << (len(part) - 1).bit_length()  # a power of two, to limit the number of different statements
            part += [part[-1]] * (size - len(part))
            asked = {f"{name}{i}": value for i, one in enumerate(part) for name, value in zip(_NAMES, one, strict=True)}
            for row in self.session.execute(_overlapping(size), asked):
                rows.setdefault((row.run_id, row.group_name, row.level), {})[row.first_step] = row
        return {one: _overlaps(one, rows.get((one.run_id, one.group, one.level), {})) for one in set(requests)}

    def numbers(self, block: Row[Any], selection: Selection) -> np.ndarray:
        """The selection's columns of the block as float32, with shape (columns, points) at level 0 and (columns, 4, points) at
        the levels above.

        Raises DamagedPayload.
        """
        key = block.run_id, block.group_name, block.level > 0
        columns, own = self._columns[key], selection.block_columns(block.level)
        if self._readers[key] == 1:
            return stored_numbers(block, own, selection.row.name)
        at = block.run_id, block.group_name, block.level, block.first_step
        if at not in self._decoded:
            self._decoded[at] = stored_numbers(block, columns)
        return self._decoded[at][own.start - columns.start : own.stop - columns.start]


def _overlaps(request: BlockRequest, rows: dict[int, Row[Any]]) -> list[Row[Any]]:
    # other requests may have fetched blocks of other steps
    return [
        rows[first]
        for first in sorted(rows)
        if any(first <= high and rows[first].last_step >= low for low, high in request.ranges)
    ]


_NAMES = ("run", "group", "level", "low", "high")


@cache
def _overlapping(ranges: int) -> Select[Any]:
    # One condition per range: common bounds would read whole runs if one range has early steps and another late steps.
    each = [
        and_(
            _BLOCKS.run_id == bindparam(f"run{i}"),
            _BLOCKS.group_name == bindparam(f"group{i}"),
            _BLOCKS.level == bindparam(f"level{i}"),
            _BLOCKS.first_step <= bindparam(f"high{i}", type_=BigInteger),
            _BLOCKS.last_step >= bindparam(f"low{i}", type_=BigInteger),
        )
        for i in range(ranges)
    ]
    return select(*NEEDED, _BLOCKS.stride).where(or_(*each))
