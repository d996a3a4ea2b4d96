"""Norms divide large rows by their largest magnitude before they square."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stablessm_core.autopsy.change import Change, NotPossible, usual_place

if TYPE_CHECKING:
    from stablessm_core.autopsy.start import Start, Trial


def make(start: Start) -> Trial:
    from stablessm_core.autopsy.bench import bench_with
    from stablessm_core.autopsy.repeat import unfused_model
    from stablessm_core.autopsy.safe_norms import use_scaled_norms

    bench = start.bench
    model = unfused_model(bench)
    if not use_scaled_norms(model):
        raise NotPossible("the model has no norm that could be scaled")
    trial = bench_with(bench, model, bench.config)
    trial.restore(start.state)
    return trial, {}


CHANGE = Change(
    name="scaled_norm",
    label="norms that scale before they square",
    how="with a norm that scales its input before it squares",
    line="line-4",
    make=make,
    place=usual_place(60.0),  # it tells where a death shows, not why
    late=True,  # before, such norms would only change rounding, and rounding alone may decide when a run dies
)
