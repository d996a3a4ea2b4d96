"""Checks the blocks of an archive against the catalogue of their run. Each block is decoded once.

After these checks, every stored block fits its place: a reader finds the columns of each series, the step of each point, and
no two values for one step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from server.ingest.blocks import Columns
from server.keep.archive import ArchiveError
from server.keep.imported_records import MAX_TRAINED_STEP
from stablessm_core.telemetry.blocks import BUCKET, LEVELS, STATS, decode
from stablessm_core.telemetry.limits import MAX_BLOCK_POINTS, MAX_STEP, MAX_UNCOVERED
from stablessm_core.telemetry.merged_payloads import pieces_of
from stablessm_core.telemetry.metrics import is_metric_group
from stablessm_core.telemetry.scattered import scattered_places
from stablessm_core.telemetry.series import source_group

MAX_LOGGED = 1 << 24  # points of a group of free metrics, which has no coarser level
Row = dict[str, Any]


class BlockCheck:
    """Checks the blocks of one run, in the order of the archive. seq: the number of the run's newest event. reported: True for a
    reported run, whose steps may be larger."""

    def __init__(self, series: Sequence[Row], seq: int, *, reported: bool = False) -> None:
        self._seq = seq
        self._most = MAX_STEP if reported else MAX_TRAINED_STEP
        self._columns = Columns(series)
        self._groups = {row["group_name"] for row in series}
        self._ends: dict[tuple[str, int], int] = {}  # the last step that the blocks of a group and level have covered so far
        self._points: Counter[tuple[str, int]] = Counter()  # recorded points that the blocks of a group and level cover

    def check(self, name: str, row: Row, payload: bytes) -> None:
        """Check a block of the archive's part `name`. Raises ArchiveError."""

        def refuse(field: str, allowed: str = "") -> ArchiveError:
            return ArchiveError(f"{name}: {field} cannot be {row[field]!r}" + (f"; allowed: {allowed}" if allowed else ""))

        if is_metric_group(row["group_name"]):
            self._check_metrics(name, row, payload, refuse)
            return
        self._check_place(row, refuse)
        count, columns, level = row["point_count"], row["column_count"], row["level"]
        try:
            numbers = decode(payload, (columns, count) if level == 0 else (columns, len(STATS), count))
            pieces = pieces_of(payload, row["seq"], count)
        except (ValueError, OverflowError) as error:
            raise ArchiveError(f"{name}: {error}") from None
        if (pieces[:, 1] > count).any() or (pieces[:, 0] < 1).any() or (np.diff(pieces[:, 0]) < 0).any():
            raise ArchiveError(f"{name}: a block lists pieces that cannot be its own")
        if (problem := self._columns.number_problem(row["group_name"], level, numbers)) is not None:
            raise ArchiveError(f"{name}: a block holds {problem[0]}; allowed: {problem[1]}")

    def finish(self, where: str) -> None:
        """Check that long groups have coarse levels, once all blocks of the run are checked. Raises ArchiveError."""
        for group in sorted(self._groups):
            if is_metric_group(group):
                continue
            covered = [self._points[group if level else source_group(group), level] for level in range(LEVELS + 1)]
            for level in range(LEVELS):
                if covered[level] - covered[level + 1] > MAX_UNCOVERED * BUCKET**level:
                    raise ArchiveError(
                        f"{where}: level {level} of group {group!r} covers {covered[level]:,} points, but level {level + 1} only "
                        f"{covered[level + 1]:,}; the difference may be at most {MAX_UNCOVERED * BUCKET**level:,}"
                    )

    def _check_place(self, row: Row, refuse: Any) -> None:
        group, level, first, last = row["group_name"], row["level"], row["first_step"], row["last_step"]
        count, stride = row["point_count"], row["stride"]
        if not 0 <= level <= LEVELS:
            raise refuse("level", f"0 to {LEVELS}")
        if not 1 <= count <= MAX_BLOCK_POINTS:
            raise refuse("point_count", f"1 to {MAX_BLOCK_POINTS:,} points in a block")
        size = BUCKET**level
        if not 1 <= stride <= self._most or stride % size:
            raise refuse("stride", f"1 to {self._most:,}, a multiple of {size:,}")
        if not 0 <= first <= last <= self._most:
            raise refuse("first_step", f"0 to last_step, at most {self._most:,}")
        if last != first + count * stride - stride // size:
            raise refuse("last_step", f"{first + count * stride - stride // size:,}, the last step of {count:,} points")
        if (group, level == 0) not in self._columns.counts:
            raise refuse("group_name", "a group with series in the catalogue")
        if row["column_count"] < self._columns.counts[group, level == 0]:
            raise refuse("column_count", f"at least {self._columns.counts[group, level == 0]:,}")
        if not 1 <= row["seq"] <= self._seq:
            raise refuse("seq", f"1 to {self._seq:,}")
        if first <= self._ends.get((group, level), -1):
            raise refuse("first_step", f"more than {self._ends[group, level]:,}, the end of the block before it")
        self._ends[group, level] = first + count * stride - 1 if level else last
        self._points[group, level] += count * size

    def _check_metrics(self, name: str, row: Row, payload: bytes, refuse: Any) -> None:
        """Check a block of free metrics, whose steps and event numbers are in its payload."""
        group, count, columns = row["group_name"], row["point_count"], row["column_count"]
        if row["level"] != 0 or row["stride"] != 1 or not 1 <= count <= MAX_BLOCK_POINTS:
            raise refuse("point_count", f"1 to {MAX_BLOCK_POINTS:,} points at level 0 with stride 1")
        least = self._columns.counts.get((group, True))
        if least is None or columns < least:
            raise refuse("column_count", f"at least {least or 1:,}, in a group of the catalogue")
        try:
            decode(payload, (columns, count))
            places = scattered_places(payload, count)
        except (ValueError, OverflowError) as error:
            raise ArchiveError(f"{name}: {error}") from None
        if places is None:
            raise ArchiveError(f"{name}: a block of free metrics lists no steps")
        steps, events = places
        if steps.min() < 0 or steps.max() > MAX_STEP or not row["first_step"] <= steps.min() or steps.max() != row["last_step"]:
            raise refuse("last_step", f"the last of the steps from {steps.min():,} to {steps.max():,}")
        if row["seq"] != events[-1] or events[0] < 1 or events[-1] > self._seq or (np.diff(events) < 0).any():
            raise refuse("seq", f"the last of its events, at most {self._seq:,}")
        self._points[group, 0] += count
        if self._points[group, 0] > MAX_LOGGED:
            raise ArchiveError(f"{name}: group {group!r} has more than {MAX_LOGGED:,} points")
