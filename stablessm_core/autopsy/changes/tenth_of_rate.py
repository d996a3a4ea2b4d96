"""All learning rates are a tenth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stablessm_core.autopsy.change import Change, usual_place

if TYPE_CHECKING:
    from stablessm_core.autopsy.start import Start, Trial

DIVISOR = 10.0


def make(start: Start) -> Trial:
    bench, optimizer = start.bench, start.bench.config.optimizer
    bench.change_rates(DIVISOR)
    bench.restore(start.state)
    own = {} if optimizer.recurrent_lr is None else {"optimizer.recurrent_lr": optimizer.recurrent_lr / DIVISOR}
    return bench, {"optimizer.lr": optimizer.lr / DIVISOR} | own


CHANGE = Change(
    name="tenth_of_rate",
    label="a tenth of the learning rate",
    how="with a tenth of the learning rate",
    line="line-2",
    make=make,
    place=usual_place(10.0),  # most deaths are deaths by the rate
    harmless=True,
)
