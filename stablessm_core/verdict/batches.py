"""Bad batches, by the largest numbers that were recorded of each batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stablessm_core.verdict.inputs import Scalars
from stablessm_core.verdict.levels import CALM, LEVEL_ROWS, usual_level

FAR = 10.0  # a batch's largest number divided by the usual one: at this ratio the batch is far above usual
FAR_ALONE = 1e18  # a batch with a number this large is bad whatever is usual: the square of 1.8e19 does not fit into float32
RECENT = 20  # a bad batch counts as the trouble if the run ended within this number of rows


@dataclass(frozen=True, kw_only=True)
class BadBatch:
    """A recorded batch that is not finite or far above usual. which: as in `Scalars.batch`, 1 input, 2 target, 3 both.

    largest, usual: the largest absolute value of this batch and of a usual batch, of the input if which is 1, else of the target.
    None if it was not recorded. finite: False if the batch held NaN or an infinity. since: for a drift, the step from which the
    numbers grew from batch to batch; None for a single batch.
    """

    step: int
    which: int
    finite: bool
    largest: float | None = None
    usual: float | None = None
    since: int | None = None


def bad_batch(scalars: Scalars, end: int) -> BadBatch | None:
    """The bad batch at or shortly before step `end`. None if the batches were usual, or if nothing about them was recorded.

    A finite batch counts as bad if its largest number is FAR times the median of all rows and 3 times the largest number
    of all rows before, or if it exceeds FAR_ALONE.
    """
    upto = scalars.step <= end
    step = scalars.step[upto]
    if not len(step):
        return None
    if scalars.batch is not None and (flag := scalars.batch[upto][-1]) > 0 and step[-1] == end:
        return BadBatch(step=int(step[-1]), which=int(flag), finite=False)
    found = []
    for which, column in ((1, scalars.largest_input), (2, scalars.largest_target)):
        if column is not None and (bad := _far_batch(step, np.abs(column[upto]), which, scalars.loss[upto])) is not None:
            found.append(bad)
    return min(found, key=lambda one: one.step) if found else None


def _far_batch(step: np.ndarray, largest: np.ndarray, which: int, loss: np.ndarray) -> BadBatch | None:
    known = np.isfinite(largest)
    if not known.any():
        return None
    usual = float(np.median(largest[known]))
    before = np.fmax.accumulate(np.append(np.nan, np.where(known, largest, np.nan)))[:-1]
    with np.errstate(invalid="ignore"):
        far = known & ((largest >= FAR * usual) & (largest >= 3 * before) | (largest >= FAR_ALONE))
    for row in np.flatnonzero(far):
        level, scale = usual_level(loss[max(0, row - LEVEL_ROWS) : row])
        later = np.where(np.isfinite(loss[row:]), loss[row:], np.inf)
        never_back = bool((later > level + (CALM - 1) * scale).all())
        if len(step) - 1 - row <= RECENT or never_back:
            others = largest[known & (np.arange(len(step)) != row)]
            normal = float(np.median(others)) if len(others) else None
            return BadBatch(step=int(step[row]), which=which, finite=True, largest=float(largest[row]), usual=normal)
    return _drift(step, largest, which, usual)


def _drift(step: np.ndarray, largest: np.ndarray, which: int, usual: float) -> BadBatch | None:
    """Batches whose numbers grow from step to step, to FAR times the median or more."""
    rows = largest[-RECENT:]
    if len(rows) < 4 or not np.isfinite(rows).all() or rows[-1] < FAR * usual or rows[-1] < FAR * rows[0]:
        return None
    if (np.diff(rows) > 0).mean() < 0.9:
        return None
    falls = np.flatnonzero(np.diff(largest) <= 0)
    since = int(falls[-1]) + 1 if len(falls) else 0
    return BadBatch(
        step=int(step[since]),
        which=which,
        finite=True,
        largest=float(rows[-1]),
        usual=float(largest[since]),
        since=int(step[since]),
    )
