"""The first step after the start does not change the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stablessm_core.autopsy.change import Change, usual_place

if TYPE_CHECKING:
    from stablessm_core.autopsy.start import Start, Trial


def make(start: Start) -> Trial:
    start.bench.leave_out(start.state)
    return start.bench, {}


CHANGE = Change(
    name="batch_left_out",
    label="batch left out",
    how="without the batch",
    line="line-3",
    make=make,
    place=usual_place(30.0, batch=5.0),  # after an unusual batch, it tells whether this batch did it
)
