"""Where the trouble of a run began: the step before which a fork or a counterfactual has to start.

A recorded row holds the loss, the gradient and the weights before the update of its step. So if a row is the first that shows an
eigenvalue outside the boundary, the update of the row before moved it there, and the state between the two steps already holds
this eigenvalue. The trouble begins at the row before, because the weights of that row were still good. A bad batch is different:
it is part of its own row, and the weights of that row are still good.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stablessm_core.telemetry.stability import overflow_budget
from stablessm_core.verdict import facts
from stablessm_core.verdict.batches import BadBatch, bad_batch
from stablessm_core.verdict.case import Case
from stablessm_core.verdict.causes import decide
from stablessm_core.verdict.causes.step_size import GREW
from stablessm_core.verdict.inputs import Layer, Run, Scalars, Source
from stablessm_core.verdict.levels import lasting_excess
from stablessm_core.verdict.optimizer_facts import DecayGrowth, RateJump
from stablessm_core.verdict.replayed import completed

KINDS = ("crossing", "loss", "gradient", "batch", "rate", "decay", "fatal")
ROWS_OF_LAYER = 400_000  # maximum number of distances of a layer that are read to find the crossing


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """The beginning of a run's trouble. kind: one of KINDS.

    step: the state after the steps 1 to `step` - 1 is certainly free of the trouble. shown: the first recorded step that shows
    the trouble. exact: False if steps between `step` and `shown` were not recorded, so the trouble may have begun at any of them.
    """

    step: int
    kind: str
    shown: int
    exact: bool = True


def trouble_start(run: Run, source: Source) -> Trouble | None:
    """The earliest sign of the trouble that ended a run, or that left the loss of a finished run far above its usual level.

    The signs are: the crossing of the guilty layer, after which it stayed outside the boundary until the overflow; a loss or a
    gradient norm of EXCESS times the median of the rows before, if it never came back; a bad batch; else the fatal step. Rows
    with another problem that the run recovered from do not count. None if the run shows no trouble.
    """
    run, source = completed(run, source)
    fatal = run.fatal
    end = run.step + 1 if fatal is None else int(fatal["step"])
    scalars = source.scalars(max(1, end - facts.LOSS_TAIL * run.every), end)
    loss = _excess(run, source, scalars, end)
    if fatal is None and loss is None:
        return None
    bad = bad_batch(run, scalars, end)
    found = [one for one in (loss, _gradient(run, scalars, end)) if one is not None and (bad is None or one.shown < bad.step)]
    if bad is not None:
        found.append(_bad_batch(scalars, bad))
    if fatal is not None:
        found += _ends(run, source, scalars, end)
    return min(found, key=lambda one: (one.step, one.shown))


def _bad_batch(scalars: Scalars, bad: BadBatch) -> Trouble:
    """The trouble of a bad batch. If the steps before it were not recorded, their batches may have been bad too."""
    earlier = scalars.step[scalars.step < bad.step]
    step = int(earlier[-1]) + 1 if bad.finite and len(earlier) else bad.step
    return Trouble(step=step, kind="batch", shown=bad.step, exact=step == bad.step)


def _before(run: Run, kind: str, steps: np.ndarray, row: int) -> Trouble:
    """The trouble that this row shows first: it began with the update of the row before."""
    shown = int(steps[row])
    step = int(steps[row - 1]) if row > 0 else max(run.first_step, shown - run.recorded_every)
    return Trouble(step=step, kind=kind, shown=shown, exact=shown - step <= 1)


def _excess(run: Run, source: Source, scalars: Scalars, end: int) -> Trouble | None:
    rows = scalars.step < end
    step, loss = scalars.step[rows], scalars.loss[rows]
    if not len(step):
        return None
    early = source.best_loss(int(step[0]))
    if early is not None and len(step) >= facts.LOSS_TAIL - 1 and early[1] > 0 and np.nanmin(loss) > facts.ROSE * early[1]:
        # the loss has been high for longer than these rows; the smallest loss came before it rose
        return Trouble(step=max(run.first_step, early[0]), kind="loss", shown=int(step[0]), exact=False)
    row = lasting_excess(loss)
    return None if row is None else _before(run, "loss", step, row)


def _gradient(run: Run, scalars: Scalars, end: int) -> Trouble | None:
    rows = scalars.step < end
    row = lasting_excess(scalars.grad_norm[rows], onset=False)
    return None if row is None else _before(run, "gradient", scalars.step[rows], row)


def _ends(run: Run, source: Source, scalars: Scalars, end: int) -> list[Trouble]:
    """The crossing that led to the overflow, if there is one, and the fatal step."""
    case = Case(replace(run, autopsy=None), source)
    cause, answer = decide(case)
    rows = np.flatnonzero(scalars.step <= end)
    by_update = cause.name in ("step_size", "lr_too_large")  # the update of the row before was fatal
    if len(rows) and (by_update or run.every > 1):
        ends = [_before(run, "fatal", scalars.step, int(rows[-1]))]
    else:
        ends = [Trouble(step=end, kind="fatal", shown=end)]
    if cause.name == "step_size" and answer.layer is not None:
        ends += _step_sizes(run, source, answer.layer, end)
    if cause.name == "unknown" and case.kick is not None:
        ends.append(Trouble(step=case.kick.step, kind="gradient", shown=case.kick.step))
    if cause.name == "optimizer" and isinstance(answer.about, RateJump):
        ends.append(Trouble(step=answer.about.step, kind="rate", shown=answer.about.step))
    if cause.name == "optimizer" and isinstance(answer.about, DecayGrowth):
        began = answer.about.since if answer.about.began is None else answer.about.began
        ends.append(Trouble(step=began, kind="decay", shown=began + 1))
    if cause.name == "eigenvalue_overflow" and answer.layer is not None:
        crossing = _crossing(run, source, answer.layer, answer.eigenvalue, end)
        ends += [] if crossing is None else [crossing]
    return ends


def _step_sizes(run: Run, source: Source, layer: Layer, end: int) -> list[Trouble]:
    """The row in which a step size of the layer had grown GREW-fold since the first row, and stayed so large."""
    low = end - min(facts.LOSS_TAIL, max(1, ROWS_OF_LAYER // max(1, layer.width))) * run.every
    first, rows = source.layer(layer.index, 0, run.first_step + run.recorded_every), source.layer(layer.index, max(1, low), end)
    if not len(first) or first.dt is None or rows.dt is None:
        return []
    usual = np.flatnonzero(~(rows.dt.max(axis=1) >= GREW * np.nanmax(first.dt[0])) & np.isfinite(rows.dt).all(axis=1))
    later = int(usual[-1]) + 1 if len(usual) else 0
    return [_before(run, "fatal", rows.step, later)] if later < len(rows) else []


def _crossing(run: Run, source: Source, layer: Layer, eigenvalue: int | None, end: int) -> Trouble | None:
    """The row after the last good row of the guilty layer: its eigenvalue was inside the boundary, and no other eigenvalue of
    the layer used more than half of its overflow budget."""
    low = end - min(facts.LOSS_TAIL, max(1, ROWS_OF_LAYER // max(1, layer.width))) * run.every
    rows = source.layer(layer.index, max(1, low), end)
    only = None if layer.wide else eigenvalue
    outside = (rows.distance < 0).any(axis=1) if only is None else rows.distance_of(only) < 0
    if only is not None and run.length is not None:
        outside = outside | (overflow_budget(run.length, rows.distance) > run.limit_of(layer.index) / 2).any(axis=1)
    inside = np.flatnonzero(~outside)
    if len(inside) and inside[-1] + 1 < len(rows):
        return _before(run, "crossing", rows.step, int(inside[-1]) + 1)
    shown = source.first_outside(layer.index, only)
    if shown is None:
        return None
    before = source.layer(layer.index, shown - 2 * run.recorded_every, shown).step
    return _before(run, "crossing", before, len(before) - 1) if len(before) else None
