"""A stretch of one series out of its blocks: raw points, or buckets of the coarsest level that is fine enough.

What a level does not cover, at its tail or around a resume, is filled from the finer ones, down to the raw points. A reader
asks for blocks as it goes: one alone has a query for each, many together share them (server.series.many).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from sqlalchemy import BigInteger, Row, and_, bindparam, case, func, or_, select
from sqlalchemy.orm import Session

from server.database.models import BlockRow
from server.database.payloads import NEEDED, stored_numbers
from server.series.layout import Place, Recorded
from stablessm_core.telemetry.blocks import BUCKET, LEVELS, envelope

GAPS_PER_QUERY = 100
CHUNK = 4096  # raw points read at once where no level has them
LAST_STEP = 2**62

# Built once: composing a statement costs as much as running it. Their bounds let the index end the search.
_BLOCKS = BlockRow.__table__.c
_LOW, _HIGH = bindparam("low", type_=BigInteger), bindparam("high", type_=BigInteger)
_OVERLAPPING = and_(
    _BLOCKS.run_id == bindparam("run"),
    _BLOCKS.group_name == bindparam("group"),
    _BLOCKS.level == bindparam("level"),
    _BLOCKS.first_step <= _HIGH,
    _BLOCKS.last_step >= _LOW,
)
_BEFORE = case((_BLOCKS.first_step >= _LOW, 0), else_=_LOW - _BLOCKS.first_step)
_UP_TO = case((_BLOCKS.last_step <= _HIGH, _BLOCKS.last_step), else_=_HIGH) - _BLOCKS.first_step
# the points inside the bounds, exactly: what is read must not depend on where blocks begin, which compaction changes
_POINTS = func.sum(_UP_TO // _BLOCKS.stride - (_BEFORE + _BLOCKS.stride - 1) // _BLOCKS.stride + 1)
EXTENT = (func.min(_BLOCKS.first_step), func.max(_BLOCKS.last_step), _POINTS)
_EXTENT = select(*EXTENT).where(_OVERLAPPING)
Gaps = list[tuple[int, int]]
Part = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # first and last step, points, stats (columns, 4, n)
_CONTENT = select(*NEEDED, _BLOCKS.stride).where(_OVERLAPPING).order_by(_BLOCKS.first_step)
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Wanted:
    """The blocks of one level that overlap these steps (ascending, disjoint), in their order: what a reader needs to go on."""

    run_id: int
    group: str
    level: int
    gaps: Gaps


Asking = Generator[Wanted, list[Row[Any]], Answer]


class Shared:
    """Blocks that were read and decoded for one reader, for the others of the same stretch: the series of a group share them."""

    def __init__(self) -> None:
        self.extents: dict[Any, Any] = {}
        self.blocks: dict[Any, list[Row[Any]]] = {}
        self.numbers: dict[Any, np.ndarray] = {}


class Reader:
    """Loads one series (or some of its eigenvalues) from the blocks of its group."""

    def __init__(
        self, session: Session, layout: Recorded, row: Place, eigenvalues: Sequence[int] | None, shared: Shared | None = None
    ) -> None:
        self.session, self.layout, self.row, self.shared = session, layout, row, shared
        self.eigenvalues = None if eigenvalues is None else np.asarray(eigenvalues, np.int64)
        if self.eigenvalues is not None and (bad := [e for e in self.eigenvalues.tolist() if not 0 <= e < row.width]):
            raise ValueError(f"series {row.name!r} has no eigenvalue {bad[0]}; allowed are 0 to {row.width - 1}")
        self.columns: Any = slice(None) if self.eigenvalues is None else self.eigenvalues
        self.width = row.width if self.eigenvalues is None else len(self.eigenvalues)

    def extent(self, from_step: int | None, to_step: int | None) -> tuple[int, int, int]:
        """First and last step to read, and how many points lie there."""
        asked = self._asked(0, 0 if from_step is None else from_step, LAST_STEP if to_step is None else to_step)
        key, shared = tuple(asked.values()), self.shared
        if shared is None or key not in shared.extents:
            found = self.session.execute(_EXTENT, asked).one()
            if shared is not None:
                shared.extents[key] = found
        else:
            found = shared.extents[key]
        return self.within(*found, from_step, to_step)

    def within(
        self, low: int | None, high: int | None, points: int | None, from_step: int | None = None, to_step: int | None = None
    ) -> tuple[int, int, int]:
        """The extent, from what the database says of the group's blocks there."""
        if low is None or high is None or points is None:
            return 0, -1, 0
        low, end = max(low, from_step or low), high if to_step is None else min(high, to_step)
        # what needs the step after is not known of the newest
        return (low, end - 1, max(0, int(points) - 1)) if self.row.steps_ahead and end == high else (low, end, int(points))

    def raw(self, gaps: Gaps) -> tuple[np.ndarray, np.ndarray]:
        """Steps (n,) and values (columns, n) of the recorded points inside the gaps."""
        return self.alone(self.asking_raw(gaps))

    def elements(self, level: int, low: int, high: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Buckets of `level` and finer ones that together cover low..high: first and last step, points, stats (columns, 4, n)."""
        return self.alone(self.asking_elements(level, low, high))

    def alone(self, asking: Asking[Answer]) -> Answer:
        """Answers it with a query each time."""
        try:
            wanted = next(asking)
            while True:
                wanted = asking.send(self._blocks(wanted))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def asking_raw(self, gaps: Gaps) -> Asking[tuple[np.ndarray, np.ndarray]]:
        """What `raw` gives."""
        if self.row.steps_ahead:
            return (yield from self._changes(gaps))
        steps, values = [np.empty(0, np.int64)], []
        span, columns = self.layout.span(self.row), self.columns
        narrow = self.eigenvalues is not None and len(self.eigenvalues) > 0 and not self.row.derived
        if self.eigenvalues is not None and narrow:
            # of the recorded columns only those between the chosen ones need to be put together
            low, high = int(self.eigenvalues.min()), int(self.eigenvalues.max()) + 1
            span, columns = slice(span.start + low, span.start + high), self.eigenvalues - low
        for block in (yield self._wanted(0, gaps)):
            numbers = self._numbers(block, span)
            numbers = numbers[columns] if narrow else self.layout.raw(self.row, numbers, span.start, columns)
            at = block.first_step + block.stride * np.arange(block.point_count, dtype=np.int64)
            for begin, stop in _inside(at, at, gaps):
                steps.append(at[begin:stop])
                values.append(numbers[:, begin:stop])
        dtype = np.float64 if self.row.derived else np.float32
        return np.concatenate(steps), np.concatenate(values, axis=1) if values else np.empty((self.width, 0), dtype)

    def _changes(self, gaps: Gaps) -> Asking[tuple[np.ndarray, np.ndarray]]:
        # of two steps each, wherever their blocks meet; one step more is read than asked for
        span, wider = self.layout.span(self.row), _joined([(low, high + 1) for low, high in gaps])
        steps, numbers = [np.empty(0, np.int64)], [np.empty((span.stop - span.start, 0), np.float32)]
        for block in (yield self._wanted(0, wider)):
            values = self._numbers(block, span)
            at = block.first_step + block.stride * np.arange(block.point_count, dtype=np.int64)
            for begin, stop in _inside(at, at, wider):
                steps.append(at[begin:stop])
                numbers.append(values[:, begin:stop])
        at, values = np.concatenate(steps), np.concatenate(numbers, axis=1)
        changes = self.layout.raw(self.row, values, span.start, self.columns)
        known = np.zeros(max(0, len(at) - 1), bool)
        for begin, stop in _inside(at, at, gaps):
            known[begin:stop] = np.diff(at[begin : stop + 1]) == 1
        return at[:-1][known], changes[:, known] if len(known) else np.empty((self.width, 0))

    def _fine(self, level: int, gaps: Gaps) -> Asking[list[Part]]:
        """What no level has, out of the raw points: as they are, or, where they are many, in buckets as long as the level's."""
        if sum(high - low + 1 for low, high in gaps) <= CHUNK * BUCKET:
            steps, values = yield from self.asking_raw(gaps)
            return [(steps, steps, np.ones(len(steps), np.int64), raw_stats(values))]
        size, empty = BUCKET**level, np.empty(0, np.int64)
        parts = [(empty, empty, empty, np.empty((self.width, 4, 0), np.float32))]
        for low, high in gaps:
            for begin in range(low, high + 1, CHUNK):
                steps, values = yield from self.asking_raw([(begin, min(high, begin + CHUNK - 1))])
                if not len(steps):
                    continue
                starts = np.arange(0, len(steps), size)
                ends = np.minimum(starts + size, len(steps))
                with np.errstate(over="ignore"):
                    stats = envelope(values.astype(np.float32, copy=False), size)
                parts.append((steps[starts], steps[ends - 1], ends - starts, stats))
        return parts

    def asking_elements(self, level: int, low: int, high: int) -> Asking[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """What `elements` gives."""
        gaps = [(low, high)]
        parts: list[Part] = []
        for k in range(level, 0, -1):
            covered: Gaps = []
            for block in (yield self._wanted(k, gaps)):
                own = slice(self.row.offset, self.row.offset + self.row.width)
                stats = self._numbers(block, own)[self.columns]
                first = block.first_step + block.stride * np.arange(block.point_count, dtype=np.int64)
                end = first + block.stride - block.stride // BUCKET**k  # the last point of each bucket
                for begin, stop in _inside(first, end, gaps):
                    weight = np.full(stop - begin, BUCKET**k, np.int64)
                    parts.append((first[begin:stop], end[begin:stop], weight, stats[..., begin:stop]))
                    covered.append((int(first[begin]), int(first[stop - 1]) + block.stride - 1))
            gaps = _minus(gaps, covered)
        parts += yield from self._fine(level, gaps)
        parts.sort(key=lambda part: int(part[0][0]) if len(part[0]) else high)
        first, end, weight = (np.concatenate([part[i] for part in parts]) for i in range(3))
        stats = np.concatenate([part[3] for part in parts], axis=2)
        order = np.argsort(first, kind="stable")  # raw points of several gaps come as one part
        if np.array_equal(order, np.arange(len(order))):
            return first, end, weight, stats
        return first[order], end[order], weight[order], stats[..., order]

    def _numbers(self, block: Row[Any], columns: slice) -> np.ndarray:
        if self.shared is None:
            return stored_numbers(block, columns, self.row.name)
        key = (block.group_name, block.level, block.first_step)
        if key not in self.shared.numbers:
            self.shared.numbers[key] = stored_numbers(block)
        return self.shared.numbers[key][columns]

    def _wanted(self, level: int, gaps: Gaps) -> Wanted:
        return Wanted(self.layout.run_id, self.row.group if level else self.row.source, level, list(gaps))

    def _blocks(self, wanted: Wanted) -> list[Row[Any]]:
        key = (*vars(wanted).values(),)[:3] + tuple(wanted.gaps)
        if self.shared is not None and key in self.shared.blocks:
            return self.shared.blocks[key]
        found: dict[int, Row[Any]] = {}
        for at in range(0, len(wanted.gaps), GAPS_PER_QUERY):
            part = wanted.gaps[at : at + GAPS_PER_QUERY]
            query = _CONTENT
            if len(part) > 1:
                query = query.where(or_(*(and_(_BLOCKS.first_step <= high, _BLOCKS.last_step >= low) for low, high in part)))
            asked = self._asked(wanted.level, part[0][0], part[-1][1], wanted.group)
            found.update({row.first_step: row for row in self.session.execute(query, asked)})
        if self.shared is not None:
            self.shared.blocks[key] = list(found.values())
        return list(found.values())

    def _asked(self, level: int, low: int, high: int, group: str = "") -> dict[str, Any]:
        return {"run": self.layout.run_id, "group": group or self.row.source, "level": level, "low": low, "high": high}


def level_for(points: int, most: int) -> int:
    """The coarsest level whose buckets are fine enough for `most` of them over so many points.

    They may become twice as long as asked for: finer material would cost up to 16 times as much to read.
    """
    return max(k for k in range(LEVELS + 1) if BUCKET**k * most <= 2 * points)


def bucket_bounds(weight: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """First and last index of each of at most `most` buckets of elements that stand for `weight` points each.

    Finer elements before the first whole one have a bucket of their own; all others are equally long, as far as the elements are:
    a heat map of such columns is drawn several times as fast.
    """
    longest, at = int(weight.max(initial=1)), np.cumsum(weight) - weight
    lead = int(at[int(np.argmax(weight == longest))]) if len(weight) and most > 1 else 0
    size = max(1, -(-int(weight.sum()) // ((most - (lead > 0)) * longest))) * longest
    starts = np.flatnonzero(np.diff((at - lead % size) // size, prepend=-2))
    return starts, np.append(starts[1:], len(weight)) - 1


def _inside(first: np.ndarray, end: np.ndarray, gaps: Gaps) -> Gaps:
    """Index ranges of the buckets first..end (ascending) that lie wholly in one of the gaps (ascending, disjoint)."""
    ranges = []
    for low, high in gaps:
        begin, stop = int(np.searchsorted(first, low)), int(np.searchsorted(end, high, side="right"))
        if begin < stop:
            ranges.append((begin, stop))
    return ranges


def _joined(gaps: Gaps) -> Gaps:
    """The same steps, where gaps (ascending) may overlap: one gap in their stead."""
    joined: Gaps = []
    for low, high in gaps:
        if joined and low <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    return joined


def _minus(gaps: Gaps, covered: Gaps) -> Gaps:
    """What of the gaps (ascending, disjoint) is not covered."""
    left: Gaps = []
    covered = sorted(covered)
    for low, high in gaps:
        for begin, end in covered:
            if end < low or begin > high:
                continue
            if begin > low:
                left.append((low, begin - 1))
            low = end + 1
        if low <= high:
            left.append((low, high))
    return left


def raw_stats(values: np.ndarray) -> np.ndarray:
    """Each raw point (columns, n) as a bucket of its own, float32 (columns, 4, n)."""
    with np.errstate(over="ignore"):  # a derived value beyond float32 is infinite here, as in the stored levels
        values = values.astype(np.float32, copy=False)
    finite = np.isfinite(values)
    low = np.where(finite, values, np.float32(np.nan))
    return np.stack([low, low, values, (~finite).astype(np.float32)], axis=1)
