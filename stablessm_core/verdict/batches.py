"""Bad batches, by the largest numbers that were recorded of each batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stablessm_core.verdict.formats import number
from stablessm_core.verdict.inputs import Run, Scalars
from stablessm_core.verdict.levels import CALM, LEVEL_ROWS, usual_level

FAR = 10.0  # a batch's largest number divided by the usual one: at this ratio the batch is far above usual
FAR_ALONE = 1e18  # a batch with a number this large is bad whatever is usual: the square of 1.8e19 does not fit into float32
RECENT = 20  # with SGD, a bad batch counts as the trouble if the run ended within this number of rows
GROWING = 4  # minimum number of rows in which the largest number of a batch grows without a break
FEW = 3  # with this number of rows or fewer, the first batch is far above usual only at FAR^2 times the others


@dataclass(frozen=True, kw_only=True)
class BadBatch:
    """A recorded batch that is not finite or far above usual. which: as in `Scalars.batch`, 1 input, 2 target, 3 both.

    largest, usual: the largest absolute value of this batch and of a usual batch, of the input if which is 1, else of the target.
    None if it was not recorded. finite: False if the batch held NaN or an infinity. since: for a drift, the step from which the
    numbers grew from batch to batch; None for a single batch. broken: whether they fell in single batches in between.
    """

    step: int
    which: int
    finite: bool
    largest: float | None = None
    usual: float | None = None
    since: int | None = None
    broken: bool = False
    few: bool = False  # fewer than FEW other batches are recorded, so that their median is not called usual

    @property
    def against(self) -> str:
        """What the batch is compared with, as text. Call it only if `usual` is known."""
        assert self.usual is not None
        return (
            f"the median of the other recorded batches, {number(self.usual)}" if self.few else f"the usual {number(self.usual)}"
        )

    @property
    def growth(self) -> str:
        """How the numbers grew, as text."""
        return "in nearly every batch" if self.broken else "from batch to batch"


def bad_batch(run: Run, scalars: Scalars, end: int) -> BadBatch | None:
    """The bad batch at or before step `end`. None if the batches were usual, or if nothing about them was recorded.

    A finite batch is far above usual if its largest number is FAR times the median of the other rows and 3 times the largest
    number of all rows before, or if it exceeds FAR_ALONE. It counts if it is the last batch, or if the loss never came back
    after it. With SGD, whose steps grow with the gradient, it also counts if it is one of the last RECENT rows.
    """
    upto = scalars.step <= end
    step = scalars.step[upto]
    if not len(step):
        return None
    if scalars.batch is not None and (flag := scalars.batch[upto][-1]) > 0 and step[-1] == end:
        return BadBatch(step=int(step[-1]), which=int(flag), finite=False)
    recent = RECENT if run.optimizer == "sgd" else 0
    found = []
    for which, column in ((1, scalars.largest_input), (2, scalars.largest_target)):
        if column is not None:
            largest = np.abs(column[upto])
            found += [_far_batch(step, largest, which, scalars.loss[upto], recent), _drift(step, largest, which)]
    return min((one for one in found if one is not None), key=lambda one: one.step, default=None)


def _far_batch(step: np.ndarray, largest: np.ndarray, which: int, loss: np.ndarray, recent: int) -> BadBatch | None:
    known = np.isfinite(largest)
    if not known.any():
        return None
    usual = _usual(largest, known)
    before = np.fmax.accumulate(np.append(np.nan, np.where(known, largest, np.nan)))[:-1]
    with np.errstate(invalid="ignore"):
        first = np.isnan(before) & ((known.sum() > FEW) | (largest >= FAR**2 * usual))
        record = (largest >= 3 * before) | first
        far = known & (((largest >= FAR * usual) & record) | (largest >= FAR_ALONE))
    for row in np.flatnonzero(far):
        level, scale = usual_level(loss[max(0, row - LEVEL_ROWS) : row])
        later = np.where(np.isfinite(loss[row:]), loss[row:], np.inf)
        never_back = bool((later > level + (CALM - 1) * scale).all())
        if len(step) - 1 - row <= recent or never_back:
            normal = float(usual[row]) if np.isfinite(usual[row]) else None
            few = known.sum() <= FEW
            size = float(largest[row])
            return BadBatch(step=int(step[row]), which=which, finite=True, largest=size, usual=normal, few=bool(few))
    return None


def _usual(largest: np.ndarray, known: np.ndarray) -> np.ndarray:
    """The median of the other rows, for each row. Among many rows, one row does not matter."""
    if known.sum() > 2 * RECENT:
        return np.full(len(largest), np.median(largest[known]))
    others = [largest[known & (np.arange(len(largest)) != row)] for row in range(len(largest))]
    return np.array([np.median(one) if len(one) else np.nan for one in others])


def _drift(step: np.ndarray, largest: np.ndarray, which: int) -> BadBatch | None:
    """Batches whose numbers grow up to the last row, to FAR times their size before or more.

    They grow in GROWING rows or more without a break, and the growth does not come from a single row; or they grow in nine of ten
    of the last RECENT rows.
    """
    since = _growing_from(largest)
    if since is None:
        return None
    unbroken = _after_last_fall(largest)
    before = largest[: unbroken + 1][np.isfinite(largest[: unbroken + 1])]
    if largest[-1] < FAR * np.median(before):
        return None
    began, ends, broken = int(step[since]), float(largest[-1]), since < unbroken
    return BadBatch(step=began, which=which, finite=True, largest=ends, usual=float(largest[since]), since=began, broken=broken)


def _growing_from(largest: np.ndarray) -> int | None:
    """The row from which the numbers grow, FAR-fold or more, up to the last row."""
    rows = largest[-RECENT:]
    if len(rows) <= GROWING or not np.isfinite(rows[-GROWING - 1 :]).all():
        return None
    since = _after_last_fall(largest)
    steps = np.diff(np.log(np.maximum(largest[since:], np.finfo(np.float64).tiny)))
    if len(steps) >= GROWING and steps.sum() >= math.log(FAR) and steps.sum() - steps.max() >= math.log(FAR) / 2:
        return since
    if not np.isfinite(rows).all() or rows[-1] < FAR * rows[0] or (np.diff(rows) > 0).mean() < 0.9:
        return None
    return min(since, len(largest) - len(rows))


def _after_last_fall(largest: np.ndarray) -> int:
    """The row from which the numbers grow in each row."""
    falls = np.flatnonzero(~(np.diff(largest) > 0))
    return int(falls[-1]) + 1 if len(falls) else 0


@dataclass(frozen=True)
class ChangedBatches:
    """Batches that are all far above those before. step: of the first one. which: as in `Scalars.batch`. rows: the recorded rows
    from then on. largest_before, smallest_after: the extremes of the largest numbers on both sides."""

    step: int
    which: int
    rows: int
    largest_before: float
    smallest_after: float


def changed_batches(scalars: Scalars, end: int) -> ChangedBatches | None:
    """The step from which every recorded batch up to `end` is far above all batches before. None if there is no such step.

    At least 2 rows lie after it, and one before. Each largest number after is at least 3 times every one before, and the
    medians differ by FAR.
    """
    for which, column in ((1, scalars.largest_input), (2, scalars.largest_target)):
        if column is None:
            continue
        keep = (scalars.step <= end) & np.isfinite(column)
        step, size = scalars.step[keep], np.abs(column[keep])
        if len(size) < 4:
            continue  # fewer rows show a bad batch, and no lasting change
        before, after = np.maximum.accumulate(size)[:-1], np.minimum.accumulate(size[::-1])[::-1][1:]
        splits = np.flatnonzero((after >= 3 * before) & (before > 0)) + 1
        splits = splits[splits <= len(size) - 2]
        if not len(splits):
            continue
        at = int(splits[np.argmax(after[splits - 1] / before[splits - 1])])
        if np.median(size[at:]) >= FAR * np.median(size[:at]):
            return ChangedBatches(int(step[at]), which, len(size) - at, float(before[at - 1]), float(after[at - 1]))
    return None
