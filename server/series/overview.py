"""What one screen shows of a run, out of one reading of its blocks: scalars at screen resolution, and a layer's charts.

Of a series with many eigenvalues a screen needs, per bucket of steps: the band from the smallest to the largest value, the
middle value at the bucket's last step, the lines that are drawn, which eigenvalues were not finite or not positive, and for
the heat map one code per cell. Each block is decoded once, whatever number of series comes out of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sqlalchemy.orm import Session

from server.series.heat import heat_codes, kinds_of
from server.series.layout import Layout, Place
from server.series.zoom import Reader, Shared, bucket_bounds, level_for, raw_stats
from stablessm_core.forms import SHARED, shared_columns
from stablessm_core.telemetry.blocks import BUCKET, LEVELS

FULL_NUMBERS = 700_000  # of all series together: up to here, and up to twice the points, every number is sent
MOST_ELEMENTS = 1 << 19  # of a series: above this the next coarser level is read, where that still gives a quarter of the points
MAX_LINES = 24
EACH_NUMBERS, LEAST_POINTS = 1 << 17, 200  # with `each`: numbers of a series, and the points that even the widest gets
Arrays = dict[str, np.ndarray]


@dataclass
class Overview:
    """One series: its arrays by name, and plain facts. `step` is the first step of each bucket.

    Scalars and small layers: `value` (n, width), or `min`, `max`, `last`, `nonfinite`. Else `low` and `high` over the finite
    values of all eigenvalues, and which those are, `low_at` and `high_at`; `median` at the bucket's last step (medians do not
    merge); `lines` (drawn, n), last values; per eigenvalue its first and its newest finite value, `each_first`, `each_last`, its
    value in the newest bucket that has a finite one, `each_end`, and its largest, `each_max`, with the bucket, `max_at`. Where
    anything is not finite `kinds` (width, n): -1 finite, 0 NaN, 1 +Inf, 2 -Inf; where anything is zero or less `below`, a bit
    each, the lowest first. `heat`: see `heat_codes`. Of a series of which several eigenvalues share a number the lines
    are those numbers.
    """

    name: str
    width: int
    arrays: Arrays
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Read:
    # of one series: buckets, or finer elements of which `starts` and `ends` make buckets
    row: Place
    first: np.ndarray
    stats: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    found: Overview


def read_overview(
    session: Session,
    layout: Layout,
    rows: Sequence[Place],
    *,
    points: int,
    from_step: int | None = None,
    to_step: int | None = None,
    lines: Sequence[int] = (),
    top: int = 0,
    by: str | None = None,
    reasons: bool = False,
    heat: Sequence[str] = (),
    order: str | None = None,
    each: bool = False,
) -> tuple[list[Overview], list[int]]:
    """The series `rows` between two steps in at most `points` buckets, and the eigenvalues whose lines are in it.

    These are `lines`; with `reasons` the first outside the boundary, the nearest to it and the one that moved most; and the `top`
    ones with the largest values of the series `by` in this stretch, or the largest eigenvalues where it is not recorded. `heat`:
    series of which a heat map is made, its rows by decay time at the "end" or the "start" of the stretch where `order` says so.
    `each`: every eigenvalue's buckets instead, with which a page can go on; fewer of wide layers. Series without a point there
    are left out.
    """
    shared = Shared()
    found: list[Overview] = []
    summaries: dict[str, _Read] = {}
    readers = [Reader(session, layout, row, None, shared) for row in rows]
    extents = [reader.extent(from_step, to_step) for reader in readers]
    sizes = [total * reader.row.width for reader, (_, _, total) in zip(readers, extents, strict=True) if reader.row.width > 1]
    for reader, (low, high, total) in zip(readers, extents, strict=True):
        row = reader.row
        most = max(LEAST_POINTS, min(points, EACH_NUMBERS // row.width)) if each else points
        if total <= 2 * points and (row.width == 1 or sum(sizes) <= FULL_NUMBERS):
            first, values = reader.raw([(low, high)])
            if len(first):
                found.append(_raw(row, first, values))
            continue
        if total <= most:
            first, values = reader.raw([(low, high)])
            end, weight, stats = first, np.ones(len(first), np.int64), raw_stats(values)
        else:
            first, end, weight, stats = reader.elements(_level(total, most, row.width), low, high)
        if not len(first):
            continue
        starts, ends = bucket_bounds(weight, most)
        one = Overview(row.name, row.width, {"step": first[starts]}, {"last_step": int(end[-1])})
        found.append(one)
        if row.width == 1 or each:
            one.arrays |= _buckets(stats, starts, ends)
        else:
            one.arrays |= _summary(stats, starts, ends)
            summaries[row.kind] = _Read(row, first, stats, starts, ends, one)
    why = _reasons(summaries) if reasons else []
    chosen = next((read for read in summaries.values() if read.row.name == by), summaries.get("eigenvalue"))
    largest = _top(chosen.stats, top, (summaries.get("gradient") or chosen).stats) if chosen else []
    drawn = sorted(list(dict.fromkeys([*lines, *why, *largest]))[:MAX_LINES])
    decay = _decay(summaries, order) if order else None
    of = next((row.width for row in rows if row.kind == "weight"), 0)
    for read in summaries.values():
        one = read.found
        one.facts["drawn"] = _columns(drawn, read.row, of)
        one.arrays["lines"] = read.stats[:, 2, read.ends][one.facts["drawn"]]
        if one.name in heat:
            one.arrays["heat"], more = heat_codes(read.stats, read.starts, read.ends, decay)
            one.facts |= more
    return found, drawn


def _columns(eigenvalues: Sequence[int], row: Place, of: int) -> list[int]:
    """Where their lines are: several of `of` eigenvalues may share a number of the series."""
    if row.kind in SHARED and of:
        return sorted(set(shared_columns(eigenvalues, of, row.width)))
    return [c for c in eigenvalues if c < row.width]


def _reasons(summaries: dict[str, _Read]) -> list[int]:
    """Eigenvalues that are worth a line of their own, as `web/static/reasons.js` names them."""
    columns: list[int] = []
    if distance := summaries.get("boundary_distance"):
        arrays = distance.found.arrays
        outside = np.flatnonzero(arrays["low"] < 0)
        columns += [int(arrays["low_at"][outside[0]])] if len(outside) else []
        end = arrays["each_end"]
        columns += [int(np.where(np.isfinite(end), end, np.inf).argmin())] if np.isfinite(end).any() else []
    if eigenvalue := summaries.get("eigenvalue"):
        arrays = eigenvalue.found.arrays
        moved = np.nan_to_num(np.abs(arrays["each_last"].astype(np.float64) - arrays["each_first"]))
        columns += [int(moved.argmax())] if moved.max() > 0 else []
    return columns


def _decay(summaries: dict[str, _Read], order: str) -> np.ndarray | None:
    # the fastest first, as `byDecay` of reasons.js
    distance = summaries.get("boundary_distance")
    if distance is None:
        return None
    values = distance.found.arrays["each_first" if order == "start" else "each_end"]
    return np.argsort(-np.where(np.isfinite(values), values, -np.inf), kind="stable")


def _raw(row: Place, steps: np.ndarray, values: np.ndarray) -> Overview:
    with np.errstate(over="ignore"):
        arrays = {"step": steps, "value": np.ascontiguousarray(values.T, np.float32)}
    return Overview(row.name, row.width, arrays, {"last_step": int(steps[-1])})


def _level(total: int, points: int, width: int) -> int:
    level = level_for(total, points)
    large = total // BUCKET**level * width > MOST_ELEMENTS
    return level + 1 if large and level < LEVELS and BUCKET ** (level + 1) * points <= 4 * total else level


def _buckets(stats: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> Arrays:
    # of every column, (n, width), or (n,) of the only one
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
    # of the finite values of each column
    ordered = np.sort(np.where(np.isfinite(last), last, np.nan), axis=0)  # NaN sorts to the end
    count = np.maximum(np.isfinite(ordered).sum(axis=0), 1)
    at = np.arange(ordered.shape[1])
    middle: np.ndarray = (ordered[(count - 1) // 2, at] + ordered[count // 2, at]) / np.float32(2)
    return middle


def _top(stats: np.ndarray, k: int, lost: np.ndarray) -> list[int]:
    """The k eigenvalues with the largest values, those that left the finite numbers first; of a ratio its gradient says which."""
    peak = np.fmax.reduce(stats[:, 1], axis=1)
    score = np.where(lost[:, 3].any(axis=1), np.inf, np.where(np.isnan(peak), -np.inf, peak))
    return [int(c) for c in np.argsort(-score, kind="stable")[:k]]
