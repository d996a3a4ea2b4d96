"""The usual level of a recorded series, and values far above it. Medians over a window, so that single rows do not matter."""

from __future__ import annotations

import math

import numpy as np

CALM = 3.0  # loss divided by its usual level: below this, the loss shows no sign of trouble
EXCESS = 10.0  # loss or gradient norm divided by its usual level: at this ratio it is far above usual
LEVEL_ROWS = 50  # number of rows before a row whose median is the usual level


def usual_level(values: np.ndarray) -> tuple[float, float]:
    """(level, scale) of some rows: the median of the finite values, and the larger of |median| and 1.48 times the median
    absolute deviation. The scale also fits losses around or below 0. NaN without a finite value."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return math.nan, math.nan
    level = float(np.median(finite))
    return level, max(abs(level), 1.4826 * float(np.median(np.abs(finite - level))))


def lasting_excess(values: np.ndarray, *, onset: bool = True) -> int | None:
    """The row from which the values stayed far above their usual level until the last row; None without such a row.

    The usual level of a row is the median of the LEVEL_ROWS rows before. The values have to rise by EXCESS - 1 times their scale
    over this level, and from the returned row on they stay more than CALM - 1 times their scale above it. A value that is not
    finite counts as far above. onset: the returned row is where the values began to rise; False for noisy values.
    """
    values = np.where(np.isfinite(values), np.asarray(values, np.float64), np.inf)
    if len(values) < 2:
        return None
    lowest_from = np.minimum.accumulate(values[::-1])[::-1]
    for row in range(1, len(values)):
        if lowest_from[row] <= lowest_from[0]:
            continue  # a later value is as low as any before: the values came back
        before = values[max(0, row - LEVEL_ROWS) : row]
        level, scale = usual_level(before)
        calm = level + (CALM - 1) * scale
        if values[row] > level + (EXCESS - 1) * scale and lowest_from[row] > calm:
            while onset and row > 1 and calm < values[row - 1] < values[row]:
                row -= 1  # the rise began earlier
            return row
    return None
