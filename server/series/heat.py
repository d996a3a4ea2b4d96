"""Eigenvalue x step as one code per cell: a shade, or what is not finite."""

from __future__ import annotations

from typing import Any

import numpy as np

MAX_ROWS = 256
# codes of a heat map's cells, in an order in which the largest of several is what is to be seen of them
NOTHING, LOWEST, HIGHEST, NAN_CODE = 0, 1, 251, 253  # then 254: +Inf, 255: -Inf
DECADES = 12  # below the largest: a few zeros must not wash out the rest


def heat_codes(
    stats: np.ndarray, starts: np.ndarray, ends: np.ndarray, order: np.ndarray | None = None
) -> tuple[np.ndarray, dict[str, Any]]:
    """uint8 (rows, buckets): log10 of the largest value in LOWEST..HIGHEST, above it what is not finite, whose largest code wins.

    order: of the eigenvalues, from the lowest row to the highest. Facts: `heat_low`, `heat_high`, the log10 of both ends;
    `heat_rows`, the first eigenvalue of each row.
    """
    width = len(stats)
    order = np.arange(width) if order is None else order
    stats = stats[order]
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
    kind = kinds_of(stats, starts, ends)
    if (kind >= 0).any():
        special = np.where(kind >= 0, kind + np.int16(NAN_CODE), 0).astype(np.uint8)
        codes = np.maximum(codes, np.maximum.reduceat(special, rows, axis=0))
    return codes, {"heat_low": low, "heat_high": high, "heat_rows": order[rows].tolist()}


def kinds_of(stats: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """int8 (width, buckets): -1 finite throughout, else 0 NaN (or a bucket that recovered), 1 +Inf, 2 -Inf."""
    last = stats[:, 2, ends]
    kind = np.full(last.shape, -1, np.int8)
    if stats[:, 3].any():
        kind[np.add.reduceat(stats[:, 3], starts, axis=1) > 0] = 0
        kind[np.isposinf(last)] = 1
        kind[np.isneginf(last)] = 2
    return kind
