"""The control: nothing is changed, so the trial must die exactly where the run died."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stablessm_core.autopsy.change import Change, usual_place

if TYPE_CHECKING:
    from stablessm_core.autopsy.start import Start, Trial


def make(start: Start) -> Trial:
    start.bench.restore(start.state)
    return start.bench, {}


CHANGE = Change(
    name="unchanged",
    label="nothing changed",
    how="unchanged",
    line="ink",
    make=make,
    place=usual_place(0.0),  # first: without the control, nothing follows from the other trials, and it is the shortest
)
