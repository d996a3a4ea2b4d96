"""Where the trouble of a run began: the step before which a fork or a counterfactual has to start.

A recorded row holds the loss, the gradient and the weights before the update of its step. So if a row is the first that shows an
eigenvalue outside the boundary, the update of the row before moved it there, and the state between the two steps already holds
this eigenvalue. The trouble begins at the row before, because the weights of that row were still good. A bad batch is different:
it is part of its own row, and the weights of that row are still good.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stablessm_core.verdict import facts
from stablessm_core.verdict.batches import BadBatch, bad_batch
from stablessm_core.verdict.case import Case
from stablessm_core.verdict.causes import decide
from stablessm_core.verdict.inputs import Run, Scalars, Source
from stablessm_core.verdict.levels import lasting_excess
from stablessm_core.verdict.replayed import completed
from stablessm_core.verdict.trouble import Trouble, update_before


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
    return None if row is None else update_before(run, "loss", step, row)


def _gradient(run: Run, scalars: Scalars, end: int) -> Trouble | None:
    rows = scalars.step < end
    row = lasting_excess(scalars.grad_norm[rows], onset=False)
    return None if row is None else update_before(run, "gradient", scalars.step[rows], row)


def _ends(run: Run, source: Source, scalars: Scalars, end: int) -> list[Trouble]:
    """The crossing that led to the overflow, if there is one, and the fatal step."""
    case = Case(replace(run, autopsy=None), source)
    cause, answer = decide(case)
    rows = np.flatnonzero(scalars.step <= end)
    if len(rows) and (cause.by_update or run.every > 1):
        ends = [update_before(run, "fatal", scalars.step, int(rows[-1]))]
    else:
        ends = [Trouble(step=end, kind="fatal", shown=end)]
    return ends + cause.begins(case, answer)
