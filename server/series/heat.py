"""Heat maps of eigenvalues over steps: one code per cell, which is a shade or a kind of non-finite value."""

from __future__ import annotations

from typing import Any

import numpy as np

MAX_ROWS = 256
# Codes of the cells. If several values share a cell, the cell shows the largest code.
NOTHING, ZERO, LOWEST, HIGHEST, NAN_CODE = 0, 1, 2, 251, 253  # the next codes are 254 for +Inf and 255 for -Inf
DECADES = 12  # number of decades on the scale below the largest value; with more, tiny values would flatten all other values


def heat_codes(
    stats: np.ndarray, starts: np.ndarray, ends: np.ndarray, order: np.ndarray | None = None
) -> tuple[np.ndarray, dict[str, Any]]:
    """uint8 (rows, buckets): log10 of the largest value, scaled to LOWEST..HIGHEST; ZERO if it is exactly 0; larger codes for
    non-finite values.

    order: the eigenvalues from the lowest row to the highest. The returned facts are `heat_low` and `heat_high`, the log10 of
    both ends of the scale, and `heat_rows`, the first eigenvalue of each row.
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
    codes = np.where(largest >= 0, np.where(np.isneginf(log), ZERO, scaled), NOTHING)
    codes = np.where(np.isnan(codes), NOTHING, codes).astype(np.uint8)
    kind = kinds_of(stats, starts, ends)
    if (kind >= 0).any():
        special = np.where(kind >= 0, kind + np.int16(NAN_CODE), 0).astype(np.uint8)
        codes = np.maximum(codes, np.maximum.reduceat(special, rows, axis=0))
    return codes, {"heat_low": low, "heat_high": high, "heat_rows": order[rows].tolist()}


def kinds_of(stats: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """int8 (width, buckets): -1 if all values are finite, else the kind of the last value: 1 for +Inf, 2 for -Inf, 0 for NaN or a
    finite value."""
    last = stats[:, 2, ends]
    kind = np.full(last.shape, -1, np.int8)
    if stats[:, 3].any():
        kind[np.add.reduceat(stats[:, 3], starts, axis=1) > 0] = 0
        kind[np.isposinf(last)] = 1
        kind[np.isneginf(last)] = 2
    return kind
