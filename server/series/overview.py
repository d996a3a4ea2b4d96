"""The data of a run that one screen shows: its scalars at screen resolution, and the charts of a layer.

For a series with many eigenvalues, a screen needs for each bucket of steps: the band from the smallest to the largest value, the
median at the bucket's last step, the drawn lines, the eigenvalues that were not finite or not positive, and one code per cell of
the heat map. All series share their queries, and each block is decoded once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sqlalchemy.orm import Session

from server.series.block_cache import Extent, read_extents, run_queries
from server.series.heat import heat_codes, kinds_of
from server.series.layout import Layout, SeriesColumns
from server.series.plans import Buckets, BucketsPlan, PointsPlan, RawPoints, ReadPlan, Selection, bucket_bounds, level_for
from stablessm_core.telemetry.blocks import BUCKET, LEVELS
from stablessm_core.telemetry.forms import SHARED, shared_columns

FULL_NUMBERS = 700_000  # series with at most 2 * `points` steps are sent completely if they have at most this many values
MOST_ELEMENTS = 1 << 19  # for more values, the next coarser level is read if it has at least a quarter of the requested buckets
MAX_LINES = 24
EACH_NUMBERS, LEAST_POINTS = 1 << 17, 200  # with `each`: maximum number of values per series, minimum number of buckets
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class OverviewOptions:
    """The options of an overview.

    points: maximum number of buckets.
    from_step, to_step: first and last step to read; None for the first and last recorded step.
    lines: eigenvalues to draw.
    top: also draw this many eigenvalues with the largest values of the series `by`, or the largest eigenvalues if there is no
        such series.
    reasons: also draw the first eigenvalue outside the boundary, the eigenvalue nearest to the boundary, and the eigenvalue
        that moved most.
    heat: names of the series with a heat map.
    order: sort the rows of heat maps by decay time at the "start" or the "end" of the steps; None to sort by number.
    each: send the buckets of every eigenvalue. A wide layer then has fewer buckets.
    """

    points: int
    from_step: int | None = None
    to_step: int | None = None
    lines: Sequence[int] = ()
    top: int = 0
    by: str | None = None
    reasons: bool = False
    heat: Sequence[str] = ()
    order: str | None = None
    each: bool = False


@dataclass
class Overview:
    """One series: its arrays by name, and other facts as plain values. `step` is the first step of each bucket.

    Scalars and small layers have `value` (n, width), or `min`, `max`, `last`, `nonfinite`. Larger layers have:
    - `low` and `high`, the extremes of all finite values, and `low_at` and `high_at`, the eigenvalues that have these values;
    - `median` at the bucket's last step (medians cannot be merged);
    - `lines`, shape (drawn, n): the last values; a column that several eigenvalues share is drawn once;
    - for each eigenvalue, the first finite value `each_first`, the newest finite value `each_last`, the value `each_end` in the
      newest bucket with any finite value, and the largest value `each_max` with the number of its bucket `max_at`;
    - `kinds` (width, n) if any value is not finite: -1 finite, 0 NaN, 1 +Inf, 2 -Inf;
    - `below` if any value is zero or less: one bit per value, the lowest bit first;
    - `heat`: see `heat_codes`.
    """

    name: str
    width: int
    arrays: Arrays
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Summarized:
    """A series of a larger layer: its buckets, grouped by `starts` and `ends`, and the overview computed from them."""

    row: SeriesColumns
    stats: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    overview: Overview


def read_overview(
    session: Session, layout: Layout, rows: Sequence[SeriesColumns], options: OverviewOptions
) -> tuple[list[Overview], list[int]]:
    """An overview of each series with points in the requested steps, and the eigenvalues whose lines are drawn."""
    selections = [Selection(layout, row) for row in rows]
    extents = read_extents(session, selections, options.from_step, options.to_step)
    complete = _sent_completely(selections, extents, options)
    plans = [_plan(*one, options) for one in zip(selections, extents, complete, strict=True)]
    found: list[Overview] = []
    layers: dict[str, _Summarized] = {}
    for selection, points, as_it_is in zip(selections, run_queries(session, plans), complete, strict=True):
        row, step = selection.row, points[0]
        if not len(step):
            continue
        if isinstance(points, RawPoints) and as_it_is:
            found.append(_all_points(row, points))
            continue
        buckets = points.as_buckets() if isinstance(points, RawPoints) else points
        starts, ends = bucket_bounds(buckets.points, _most_buckets(row, options))
        overview = Overview(row.name, row.width, {"step": step[starts]}, {"last_step": int(buckets.last[-1])})
        found.append(overview)
        if row.width == 1 or options.each:
            overview.arrays |= _buckets(buckets.stats, starts, ends)
        else:
            overview.arrays |= _summary(buckets.stats, starts, ends)
            layers[row.kind] = _Summarized(row, buckets.stats, starts, ends, overview)
    drawn = _drawn(layers, options)
    _add_lines_and_heat(layers, drawn, options, next((row.width for row in rows if row.kind == "weight"), 0))
    return found, drawn


def _sent_completely(selections: Sequence[Selection], extents: Sequence[Extent], options: OverviewOptions) -> list[bool]:
    """For each series, True if it has so few points that all of them are sent."""
    pairs = list(zip(selections, extents, strict=True))
    few = sum(extent.points * one.row.width for one, extent in pairs if one.row.width > 1) <= FULL_NUMBERS
    return [extent.points <= 2 * options.points and (few or one.row.width == 1) for one, extent in pairs]


def _plan(selection: Selection, extent: Extent, complete: bool, options: OverviewOptions) -> ReadPlan[RawPoints | Buckets]:
    most = _most_buckets(selection.row, options)
    if complete or extent.points <= most:
        return PointsPlan(selection, [(extent.low, extent.high)])
    level = level_for(extent.points, most)
    large = extent.points // BUCKET**level * selection.row.width > MOST_ELEMENTS
    if large and level < LEVELS and BUCKET ** (level + 1) * most <= 4 * extent.points:
        level += 1
    return BucketsPlan(selection, level, extent.low, extent.high)


def _most_buckets(row: SeriesColumns, options: OverviewOptions) -> int:
    return max(LEAST_POINTS, min(options.points, EACH_NUMBERS // row.width)) if options.each else options.points


def _drawn(layers: Mapping[str, _Summarized], options: OverviewOptions) -> list[int]:
    """The eigenvalues that get a line, in ascending order."""
    reasons = _reasons(layers) if options.reasons else []
    ranked = next((one for one in layers.values() if one.row.name == options.by), layers.get("eigenvalue"))
    largest = _top(ranked.stats, options.top, layers.get("gradient", ranked).stats) if ranked else []
    return sorted(list(dict.fromkeys([*options.lines, *reasons, *largest]))[:MAX_LINES])


def _add_lines_and_heat(
    layers: Mapping[str, _Summarized], drawn: Sequence[int], options: OverviewOptions, eigenvalues: int
) -> None:
    order = _decay_order(layers, options.order) if options.order else None
    for one in layers.values():
        overview = one.overview
        overview.facts["drawn"] = _columns(drawn, one.row, eigenvalues)
        overview.arrays["lines"] = one.stats[:, 2, one.ends][overview.facts["drawn"]]
        if overview.name in options.heat:
            overview.arrays["heat"], facts = heat_codes(one.stats, one.starts, one.ends, order)
            overview.facts |= facts


def _columns(drawn: Sequence[int], row: SeriesColumns, eigenvalues: int) -> list[int]:
    """The columns of the series that contain the drawn eigenvalues. eigenvalues: the number of eigenvalues, several of which may
    share a column."""
    if row.kind in SHARED and eigenvalues:
        return sorted(set(shared_columns(drawn, eigenvalues, row.width)))
    return [c for c in drawn if c < row.width]


def _reasons(layers: Mapping[str, _Summarized]) -> list[int]:
    """Eigenvalues that get their own line for a reason; `web/static/run/reasons.js` names the reasons."""
    columns: list[int] = []
    if distance := layers.get("boundary_distance"):
        arrays = distance.overview.arrays
        outside = np.flatnonzero(arrays["low"] < 0)
        columns += [int(arrays["low_at"][outside[0]])] if len(outside) else []
        end = arrays["each_end"]
        columns += [int(np.where(np.isfinite(end), end, np.inf).argmin())] if np.isfinite(end).any() else []
    if eigenvalue := layers.get("eigenvalue"):
        arrays = eigenvalue.overview.arrays
        moved = np.nan_to_num(np.abs(arrays["each_last"].astype(np.float64) - arrays["each_first"]))
        columns += [int(moved.argmax())] if moved.max() > 0 else []
    return columns


def _decay_order(layers: Mapping[str, _Summarized], at: str) -> np.ndarray | None:
    """The eigenvalues from the fastest to the slowest decay, in the same order as `byDecay` of reasons.js; None if the decay was
    not recorded."""
    distance = layers.get("boundary_distance")
    if distance is None:
        return None
    values = distance.overview.arrays["each_first" if at == "start" else "each_end"]
    return np.argsort(-np.where(np.isfinite(values), values, -np.inf), kind="stable")


def _all_points(row: SeriesColumns, points: RawPoints) -> Overview:
    with np.errstate(over="ignore"):
        arrays = {"step": points.step, "value": np.ascontiguousarray(points.values.T, np.float32)}
    return Overview(row.name, row.width, arrays, {"last_step": int(points.step[-1])})


def _buckets(stats: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> Arrays:
    # each array has shape (n, width), or (n,) if there is one column
    found = {
        "min": np.fmin.reduceat(stats[:, 0], starts, axis=1),
        "max": np.fmax.reduceat(stats[:, 1], starts, axis=1),
        "last": stats[:, 2, ends],
        "nonfinite": np.add.reduceat(stats[:, 3], starts, axis=1, dtype=np.int64).astype(np.int32),
    }
    return {name: values[0] if len(values) == 1 else np.ascontiguousarray(values.T) for name, values in found.items()}


def _summary(stats: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> Arrays:
    last = stats[:, 2, ends]
    low, high = np.fmin.reduceat(stats[:, 0], starts, axis=1), np.fmax.reduceat(stats[:, 1], starts, axis=1)
    with np.errstate(invalid="ignore"):
        lowest = np.where(np.isnan(low), np.inf, low).argmin(axis=0)
        highest = np.where(np.isnan(high), -np.inf, high)
    at, each = np.arange(len(starts)), np.arange(len(stats))
    finite = np.isfinite(last)
    newest = finite.shape[1] - 1
    end = newest - int(finite.any(axis=0)[::-1].argmax())
    some = finite.any(axis=1)
    found = {
        "low": low[lowest, at],
        "high": high[highest.argmax(axis=0), at],
        "low_at": lowest.astype(np.int32),
        "high_at": highest.argmax(axis=0).astype(np.int32),
        "median": _median(last),
        "each_first": np.where(some, last[each, finite.argmax(axis=1)], np.float32(np.nan)),
        "each_last": np.where(some, last[each, newest - finite[:, ::-1].argmax(axis=1)], np.float32(np.nan)),
        "each_end": last[:, end],
        "each_max": highest.max(axis=1),
        "max_at": highest.argmax(axis=1).astype(np.int32),
    }
    if (kinds := kinds_of(stats, starts, ends)).max() >= 0:
        found["kinds"] = kinds
    if (below := low <= 0).any():
        found["below"] = np.packbits(below, bitorder="little")
    return found


def _median(last: np.ndarray) -> np.ndarray:
    # the median of the finite values in each column
    ordered = np.sort(np.where(np.isfinite(last), last, np.nan), axis=0)  # NaN sorts to the end
    count = np.maximum(np.isfinite(ordered).sum(axis=0), 1)
    at = np.arange(ordered.shape[1])
    middle: np.ndarray = (ordered[(count - 1) // 2, at] + ordered[count // 2, at]) / np.float32(2)
    return middle


def _top(stats: np.ndarray, k: int, gradient: np.ndarray) -> list[int]:
    """The k eigenvalues with the largest values. Eigenvalues whose gradient was not finite come first.

    gradient: the stats of the gradient, or of the series itself if the gradient is not recorded.
    """
    peak = np.fmax.reduce(stats[:, 1], axis=1)
    score = np.where(gradient[:, 3].any(axis=1), np.inf, np.where(np.isnan(peak), -np.inf, peak))
    return [int(c) for c in np.argsort(-score, kind="stable")[:k]]
