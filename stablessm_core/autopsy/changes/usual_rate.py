"""The learning rate stays at its usual level of the steps before the trouble."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from stablessm_core.autopsy.change import Change, NotPossible, usual_place

if TYPE_CHECKING:
    from stablessm_core.autopsy.start import Start, Trial

LOOKED_AT = 256  # number of steps before the trouble whose rates tell what is usual
JUMP = 3.0  # a rate of this many times its median has jumped; the median of a linear warm-up is half of its newest rate


def make(start: Start) -> Trial:
    bench, step = start.bench, start.state.step
    if step < 1:
        raise NotPossible("no step before the trouble tells which rate is usual")
    bench.restore(start.state)
    usual = statistics.median(bench.multiplier(one) for one in range(max(1, step + 1 - LOOKED_AT), step + 1))
    if not any(bench.multiplier(one) >= JUMP * usual for one in range(step + 1, start.fatal + 1)):
        raise NotPossible("the learning rate did not jump")
    trial = replace(bench, held=usual)
    trial.restore(start.state)
    return trial, {}


CHANGE = Change(
    name="usual_rate",
    label="the learning rate before the trouble",
    how="with the learning rate that was usual before",
    line="line-7",
    make=make,
    place=usual_place(15.0, rate=1.0),  # where the rate jumped, it says more than a tenth of the rate; elsewhere it costs nothing
    harmless=True,
)
