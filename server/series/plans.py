"""Read plans. A plan names the stored blocks that a read of a series needs next, and assembles them. This file runs no SQL.

A long range of steps is read as buckets of the coarsest level that is fine enough. Finer levels, down to the raw points, fill the
steps that this level does not cover: the newest steps, and the steps around a resume.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from sqlalchemy import Row

from server.database.payloads import stored_places
from server.series.layout import RecordedLayout, SeriesColumns
from stablessm_core.telemetry.blocks import BUCKET, LEVELS, envelope
from stablessm_core.telemetry.scattered import last_of_each_step, present

CHUNK = 4096  # number of raw points per query, if many points are covered by no level
StepRanges = list[tuple[int, int]]  # first and last step of each range; ascending, disjoint
Decode = Callable[[Row[Any]], np.ndarray]
Result = TypeVar("Result", covariant=True)
_NO_STEP = np.empty(0, np.int64)


class Selection:
    """One series of a run, or some of its eigenvalues. Raises ValueError for an eigenvalue that is not in the series."""

    def __init__(self, layout: RecordedLayout, row: SeriesColumns, eigenvalues: Sequence[int] | None = None) -> None:
        self.layout, self.row, self.run_id = layout, row, layout.run_id
        self.eigenvalues = None if eigenvalues is None else np.asarray(eigenvalues, np.int64)
        if self.eigenvalues is not None and (bad := [e for e in self.eigenvalues.tolist() if not 0 <= e < row.width]):
            raise ValueError(f"series {row.name!r} has no eigenvalue {bad[0]}; allowed: 0 to {row.width - 1}")
        self.width = row.width if self.eigenvalues is None else len(self.eigenvalues)
        self._columns: Any = slice(None) if self.eigenvalues is None else self.eigenvalues
        self._raw_span = layout.span(row)
        self._narrow = self.eigenvalues is not None and self.width > 0 and not row.derived
        if self.eigenvalues is not None and self._narrow:  # decode only the columns from the first to the last chosen one
            low, high = int(self.eigenvalues.min()), int(self.eigenvalues.max()) + 1
            self._columns_of_span = self.eigenvalues - low
            self._raw_span = slice(self._raw_span.start + low, self._raw_span.start + high)

    def group(self, level: int) -> str:
        """The group whose blocks of this level contain the series."""
        return self.row.group if level else self.row.source

    def block_columns(self, level: int) -> slice:
        """The columns to decode in a block of this level."""
        return slice(self.row.offset, self.row.offset + self.row.width) if level else self._raw_span

    def request(self, level: int, ranges: StepRanges) -> BlockRequest:
        return BlockRequest(self.run_id, self.group(level), level, tuple(ranges))

    def stats(self, numbers: np.ndarray) -> np.ndarray:
        """The statistics, float32 (width, 4, buckets), from the decoded columns of a block above level 0."""
        stats: np.ndarray = numbers[self._columns]
        return stats

    def values(self, numbers: np.ndarray) -> np.ndarray:
        """The values (width, points) from the decoded columns of a raw block: float32, or float64 for a derived series."""
        if self._narrow:
            return numbers[self._columns_of_span]
        return self.layout.raw(self.row, numbers, self._raw_span.start, self._columns)


@dataclass(frozen=True)
class BlockRequest:
    """The blocks of one level of a group that overlap any of the step ranges (ascending, disjoint)."""

    run_id: int
    group: str
    level: int
    ranges: tuple[tuple[int, int], ...]


class ReadPlan(Protocol[Result]):
    """A read in progress. `request` names the blocks that the read needs next, or is None if no more blocks are needed."""

    @property
    def selection(self) -> Selection: ...
    @property
    def request(self) -> BlockRequest | None: ...
    def add(self, blocks: Sequence[Row[Any]], decode: Decode) -> None:
        """Receive the requested blocks, in the order of their steps."""

    def result(self) -> Result: ...


class RawPoints(NamedTuple):
    """Raw points: step int64 (n,), values (columns, n)."""

    step: np.ndarray
    values: np.ndarray

    def as_buckets(self) -> Buckets:
        """Each point as its own bucket."""
        return Buckets(self.step, self.step, np.ones(len(self.step), np.int64), raw_stats(self.values))


class Buckets(NamedTuple):
    """Buckets in the order of their steps: first step, last step and number of points, each (n,), and stats, float32 (columns, 4,
    n)."""

    first: np.ndarray
    last: np.ndarray
    points: np.ndarray
    stats: np.ndarray


class PointsPlan:
    """Reads the recorded points inside the step ranges."""

    def __init__(self, selection: Selection, ranges: StepRanges) -> None:
        self.selection, self.ranges = selection, ranges
        # A value that needs the next step is computed across blocks, so one step more than requested is read.
        self._read = _joined([(low, high + 1) for low, high in ranges]) if selection.row.steps_ahead else ranges
        self.request: BlockRequest | None = selection.request(0, self._read)
        self._points: list[RawPoints] = []

    def add(self, blocks: Sequence[Row[Any]], decode: Decode) -> None:
        self.request = None
        if self.selection.row.scattered:
            self._points += _logged_points(self.selection, blocks, decode, self._read)
            return
        for block in blocks:
            numbers = decode(block) if self.selection.row.steps_ahead else self.selection.values(decode(block))
            step = block.first_step + block.stride * np.arange(block.point_count, dtype=np.int64)
            self._points += [RawPoints(step[i:j], numbers[:, i:j]) for i, j in _inside(step, step, self._read)]

    def result(self) -> RawPoints:
        ahead, dtype = self.selection.row.steps_ahead, np.float64 if self.selection.row.derived else np.float32
        parts, self._points = self._points, []
        step, numbers = (np.concatenate(part, axis=-1) for part in zip(*parts, strict=True)) if parts else (_NO_STEP, None)
        if numbers is None or len(step) <= ahead:
            return RawPoints(_NO_STEP, np.empty((self.selection.width, 0), dtype))
        if not ahead:
            return RawPoints(step, numbers)
        known = np.zeros(len(step) - 1, bool)
        for i, j in _inside(step, step, self.ranges):
            known[i:j] = np.diff(step[i : j + 1]) == 1
        return RawPoints(step[:-1][known], self.selection.values(numbers)[:, known])


class BucketsPlan:
    """Reads buckets of `level` and of finer levels that together cover the steps low..high."""

    def __init__(self, selection: Selection, level: int, low: int, high: int) -> None:
        self.selection, self._size = selection, BUCKET**level
        self._missing: StepRanges = [(low, high)]  # the steps that no level has covered
        self._raw: list[PointsPlan] = []
        self._parts: list[Buckets] = []
        if selection.row.scattered:  # free metrics have no coarser levels
            self._level, self._size, self._raw = 0, 1, [PointsPlan(selection, self._missing)]
            self.request = self._raw[0].request
            return
        self._plan_level(level)

    def add(self, blocks: Sequence[Row[Any]], decode: Decode) -> None:
        if self._level:
            self._add_level(blocks, decode)
            self._plan_level(self._level - 1)
        else:
            plan = self._raw.pop(0)
            plan.add(blocks, decode)
            self._add_points(plan.result())
            self.request = self._raw[0].request if self._raw else None

    def _plan_level(self, level: int) -> None:
        self._level, self.request = level, None
        if level and self._missing:
            self.request = self.selection.request(level, self._missing)
        elif self._missing:
            self._raw = [PointsPlan(self.selection, ranges) for ranges in _chunks(self._missing)]
            self._size = self._size if len(self._raw) > 1 else 1
            self.request = self._raw[0].request

    def _add_level(self, blocks: Sequence[Row[Any]], decode: Decode) -> None:
        size, covered = BUCKET**self._level, []
        for block in blocks:
            stats = self.selection.stats(decode(block))
            first = block.first_step + block.stride * np.arange(block.point_count, dtype=np.int64)
            last = first + block.stride - block.stride // size  # the last point of each bucket
            for i, j in _inside(first, last, self._missing):
                self._parts.append(Buckets(first[i:j], last[i:j], np.full(j - i, size, np.int64), stats[..., i:j]))
                covered.append((int(first[i]), int(first[j - 1]) + block.stride - 1))
        self._missing = _minus(self._missing, covered)

    def _add_points(self, points: RawPoints) -> None:
        if len(points.step):
            self._parts.append(points.as_buckets() if self._size == 1 else _shortened(points, self._size))

    def result(self) -> Buckets:
        parts, self._parts = sorted(self._parts, key=lambda part: int(part.first[0])), []
        if not parts:
            return Buckets(_NO_STEP, _NO_STEP, _NO_STEP, np.empty((self.selection.width, 4, 0), np.float32))
        found = Buckets(*(np.concatenate(part, axis=-1) for part in zip(*parts, strict=True)))
        order = np.argsort(found.first, kind="stable")  # the raw points from several gaps may form one part
        if np.array_equal(order, np.arange(len(order))):
            return found
        return Buckets(*(part[..., order] for part in found))


def _chunks(ranges: StepRanges) -> list[StepRanges]:
    """The ranges in one piece if they are short, else in pieces of CHUNK steps."""
    if sum(high - low + 1 for low, high in ranges) <= CHUNK * BUCKET:
        return [ranges]
    return [[(at, min(high, at + CHUNK - 1))] for low, high in ranges for at in range(low, high + 1, CHUNK)]


def _shortened(points: RawPoints, size: int) -> Buckets:
    """Buckets of `size` points each; the last bucket may have fewer points."""
    starts = np.arange(0, len(points.step), size)
    ends = np.minimum(starts + size, len(points.step))
    with np.errstate(over="ignore"):
        stats = envelope(points.values.astype(np.float32, copy=False), size)
    return Buckets(points.step[starts], points.step[ends - 1], ends - starts, stats)


def _logged_points(selection: Selection, blocks: Sequence[Row[Any]], decode: Decode, ranges: StepRanges) -> list[RawPoints]:
    """The points of a free metric inside the step ranges, in step order. Of several values at one step, the last one counts."""
    steps, events, values = [_NO_STEP], [_NO_STEP], [np.empty((selection.width, 0), np.float32)]
    for block in blocks:
        numbers, places = selection.values(decode(block)), stored_places(block)
        if places is not None:
            some = present(numbers[0]) if len(numbers) else np.zeros(block.point_count, bool)
            steps.append(places[0][some])
            events.append(places[1][some])
            values.append(numbers[:, some])
    step, event, value = np.concatenate(steps), np.concatenate(events), np.concatenate(values, axis=1)
    last = last_of_each_step(step, event)
    step, value = step[last], value[:, last]
    return [RawPoints(step[i:j], value[:, i:j]) for i, j in _inside(step, step, ranges)]


def raw_stats(values: np.ndarray) -> np.ndarray:
    """The statistics, float32 (columns, 4, n), if each raw point (columns, n) is its own bucket."""
    with np.errstate(over="ignore"):  # a derived value beyond float32 becomes infinite, as in the stored levels
        values = values.astype(np.float32, copy=False)
    finite = np.isfinite(values)
    low = np.where(finite, values, np.float32(np.nan))
    return np.stack([low, low, values, (~finite).astype(np.float32)], axis=1)


def level_for(points: int, most: int) -> int:
    """The coarsest level that divides `points` points into about `most` buckets or more.

    Its buckets may be up to twice as long as requested, because reading a finer level would cost up to 16 times as much.
    """
    return max(k for k in range(LEVELS + 1) if BUCKET**k * most <= 2 * points)


def bucket_bounds(points: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The first and last bucket of each group, if the buckets are put into at most `most` groups. points: the number of points
    of each bucket.

    The shorter buckets before the first full bucket form their own group. All other groups are as equal in length as the buckets
    allow, because a heat map with equally wide columns is drawn several times as fast.
    """
    longest, at = int(points.max(initial=1)), np.cumsum(points) - points
    lead = int(at[int(np.argmax(points == longest))]) if len(points) and most > 1 else 0
    size = max(1, -(-int(points.sum()) // ((most - (lead > 0)) * longest))) * longest
    starts = np.flatnonzero(np.diff((at - lead % size) // size, prepend=-2))
    return starts, np.append(starts[1:], len(points)) - 1


def _inside(first: np.ndarray, last: np.ndarray, ranges: StepRanges) -> list[tuple[int, int]]:
    """Index ranges (end excluded) of the buckets first..last (ascending) that are completely inside one of the step ranges."""
    found = ((int(np.searchsorted(first, low)), int(np.searchsorted(last, high, side="right"))) for low, high in ranges)
    return [(i, j) for i, j in found if i < j]


def _joined(ranges: StepRanges) -> StepRanges:
    """The ranges, with overlapping ranges merged. The given ranges must be sorted by their first step."""
    joined: StepRanges = []
    for low, high in ranges:
        if joined and low <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    return joined


def _minus(ranges: StepRanges, covered: StepRanges) -> StepRanges:
    """The steps of `ranges` that are not in `covered`."""
    left: StepRanges = []
    covered = sorted(covered)
    for low, high in ranges:
        for begin, end in covered:
            if end < low or begin > high:
                continue
            if begin > low:
                left.append((low, begin - 1))
            low = end + 1
        if low <= high:
            left.append((low, high))
    return left
