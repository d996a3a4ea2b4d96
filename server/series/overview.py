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

from server.series.layout import Layout, Place
from server.series.zoom import Reader, Shared, bucket_bounds, level_for, raw_stats
from stablessm_core.telemetry.blocks import BUCKET, LEVELS

FULL_NUMBERS = 700_000  # of all series together: up to here, and up to twice the points, every number is sent
MOST_ELEMENTS = 1 << 19  # of a series: above this the next coarser level is read, where that still gives a quarter of the points
MAX_ROWS = 256  # of a heat map
MAX_LINES = 24
# codes of a heat map's cells, in an order in which the largest of several is what is to be seen of them
NOTHING, LOWEST, HIGHEST, NAN_CODE = 0, 1, 251, 253  # then 254: +Inf, 255: -Inf
DECADES = 12  # below the largest: a few zeros must not wash out the rest
Arrays = dict[str, np.ndarray]


@dataclass
class Overview:
    """One series: its arrays by name, and plain facts. `step` is the first step of each bucket.

    Scalars and small layers: `value` (n, width), or `min`, `max`, `last`, `nonfinite`. Else `low` and `high` over the finite
    values of all eigenvalues, and which those are, `low_at` and `high_at`; `median` at the bucket's last step (medians do not
    merge); `lines` (drawn, n), last values; per eigenvalue its last value in the first and the last bucket, `each_first`,
    `each_last`, and its largest, `each_max`, with the bucket, `max_at`. Where anything is not finite `kinds` (width, n): -1
    finite, 0 NaN, 1 +Inf, 2 -Inf; where anything is zero or less `below`, a bit each, the lowest first. `heat`: see `heat_codes`.
    """

    name: str
    width: int
    arrays: Arrays
    facts: dict[str, Any] = field(default_factory=dict)


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
    heat: Sequence[str] = (),
) -> tuple[list[Overview], list[int]]:
    """The series `rows` between two steps in at most `points` buckets, and the eigenvalues whose lines are in it.

    These are `lines`, and the `top` ones with the largest values of the series `by` in this stretch. `heat`: series of which a
    heat map is made. Series without a point there are left out.
    """
    shared = Shared()
    found: list[Overview] = []
    drawn = sorted(set(lines))[:MAX_LINES]
    readers = [Reader(session, layout, row, None, shared) for row in sorted(rows, key=lambda r: r.name != by)]
    extents = [reader.extent(from_step, to_step) for reader in readers]  # the series that chooses the lines comes first
    sizes = [total * reader.row.width for reader, (_, _, total) in zip(readers, extents, strict=True) if reader.row.width > 1]
    for reader, (low, high, total) in zip(readers, extents, strict=True):
        row = reader.row
        if total <= 2 * points and (row.width == 1 or sum(sizes) <= FULL_NUMBERS):
            first, values = reader.raw([(low, high)])
            if len(first):
                found.append(_raw(row, first, values))
            continue
        if total <= points:
            first, values = reader.raw([(low, high)])
            end, weight, stats = first, np.ones(len(first), np.int64), raw_stats(values)
        else:
            first, end, weight, stats = reader.elements(_level(total, points, row.width), low, high)
        if not len(first):
            continue
        starts, ends = bucket_bounds(weight, points)
        arrays: Arrays = {"step": first[starts]}
        facts: dict[str, Any] = {"last_step": int(end[-1])}
        if row.width == 1:
            arrays |= _buckets(stats, starts, ends)
        else:
            if row.name == by:
                drawn = sorted([*drawn, *(c for c in _top(stats, top) if c not in drawn)][:MAX_LINES])
            facts["drawn"] = [c for c in drawn if c < row.width]
            arrays |= _summary(stats, starts, ends, facts["drawn"])
            if row.name in heat:
                arrays["heat"], more = heat_codes(stats, starts, ends)
                facts |= more
        found.append(Overview(row.name, row.width, arrays, facts))
    return found, drawn


def _raw(row: Place, steps: np.ndarray, values: np.ndarray) -> Overview:
    with np.errstate(over="ignore"):
        arrays = {"step": steps, "value": np.ascontiguousarray(values.T, np.float32)}
    return Overview(row.name, row.width, arrays, {"last_step": int(steps[-1])})


def _level(total: int, points: int, width: int) -> int:
    level = level_for(total, points)
    large = total // BUCKET**level * width > MOST_ELEMENTS
    return level + 1 if large and level < LEVELS and BUCKET ** (level + 1) * points <= 4 * total else level


def _buckets(stats: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> Arrays:
    # of a series of width 1
    return {
        "min": np.fmin.reduceat(stats[0, 0], starts),
        "max": np.fmax.reduceat(stats[0, 1], starts),
        "last": stats[0, 2, ends],
        "nonfinite": np.add.reduceat(stats[0, 3], starts, dtype=np.int64).astype(np.int32),
    }


def _summary(stats: np.ndarray, starts: np.ndarray, ends: np.ndarray, lines: Sequence[int]) -> Arrays:
    last = stats[:, 2, ends]
    low, high = np.fmin.reduceat(stats[:, 0], starts, axis=1), np.fmax.reduceat(stats[:, 1], starts, axis=1)
    with np.errstate(invalid="ignore"):
        lowest = np.where(np.isnan(low), np.inf, low).argmin(axis=0)
        highest = np.where(np.isnan(high), -np.inf, high)
    at = np.arange(len(starts))
    found = {
        "low": low[lowest, at],
        "high": high[highest.argmax(axis=0), at],
        "low_at": lowest.astype(np.int32),
        "high_at": highest.argmax(axis=0).astype(np.int32),
        "median": _median(last),
        "lines": last[list(lines)],
        "each_first": last[:, 0],
        "each_last": last[:, -1],
        "each_max": highest.max(axis=1),
        "max_at": highest.argmax(axis=1).astype(np.int32),
    }
    if (kinds := _kinds(stats, starts, ends)).max() >= 0:
        found["kinds"] = kinds
    if (below := low <= 0).any():
        found["below"] = np.packbits(below, bitorder="little")
    return found


def _kinds(stats: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """int8 (width, buckets): -1 finite throughout, else 0 NaN (or a bucket that recovered), 1 +Inf, 2 -Inf."""
    last = stats[:, 2, ends]
    kind = np.full(last.shape, -1, np.int8)
    if stats[:, 3].any():
        kind[np.add.reduceat(stats[:, 3], starts, axis=1) > 0] = 0
        kind[np.isposinf(last)] = 1
        kind[np.isneginf(last)] = 2
    return kind


def _median(last: np.ndarray) -> np.ndarray:
    # of the finite values of each column
    ordered = np.sort(np.where(np.isfinite(last), last, np.nan), axis=0)  # NaN sorts to the end
    count = np.maximum(np.isfinite(ordered).sum(axis=0), 1)
    at = np.arange(ordered.shape[1])
    middle: np.ndarray = (ordered[(count - 1) // 2, at] + ordered[count // 2, at]) / np.float32(2)
    return middle


def _top(stats: np.ndarray, k: int) -> list[int]:
    """The k eigenvalues with the largest values, those that left the finite numbers first."""
    peak = np.fmax.reduce(stats[:, 1], axis=1)
    score = np.where(stats[:, 3].any(axis=1), np.inf, np.where(np.isnan(peak), -np.inf, peak))
    return [int(c) for c in np.argsort(-score, kind="stable")[:k]]


def heat_codes(stats: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
    """uint8 (rows, buckets): log10 of the largest value in LOWEST..HIGHEST, above it what is not finite, whose largest code wins.

    Facts: `heat_low`, `heat_high`, the log10 of both ends; `heat_rows`, the first eigenvalue of each row.
    """
    width = len(stats)
    rows = np.arange(0, width, -(-width // MAX_ROWS))
    largest = np.fmax.reduceat(np.fmax.reduceat(stats[:, 1], starts, axis=1), rows, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.log10(largest.astype(np.float64))
    finite = log[np.isfinite(log)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    low = max(low, high - DECADES)
    scale = (HIGHEST - LOWEST) / (high - low) if high > low else 0.0
    with np.errstate(invalid="ignore"):
        scaled = np.rint(np.clip((log - low) * scale, 0, HIGHEST - LOWEST)) + LOWEST
    codes = np.where(largest >= 0, np.where(np.isneginf(log), LOWEST, scaled), NOTHING)
    codes = np.where(np.isnan(codes), NOTHING, codes).astype(np.uint8)
    kind = _kinds(stats, starts, ends)
    if (kind >= 0).any():
        special = np.where(kind >= 0, kind + np.int16(NAN_CODE), 0).astype(np.uint8)
        codes = np.maximum(codes, np.maximum.reduceat(special, rows, axis=0))
    return codes, {"heat_low": low, "heat_high": high, "heat_rows": rows.tolist()}
