"""No weight decays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stablessm_core.autopsy.change import Change, NotPossible, usual_place

if TYPE_CHECKING:
    from stablessm_core.autopsy.start import Start, Trial

PATHS = ("optimizer.weight_decay", "optimizer.recurrent_weight_decay")


def make(start: Start) -> Trial:
    from stablessm_core.autopsy.bench import bench_with
    from stablessm_core.model import build_model

    bench = start.bench
    if not any(group["weight_decay"] for group in bench.optimizer.param_groups):
        raise NotPossible("no weight of the run decays")
    without = bench.config.optimizer.model_copy(update={"weight_decay": 0.0, "recurrent_weight_decay": 0.0})
    config = bench.config.model_copy(update={"optimizer": without})
    # a new bench, because a captured training step holds the old decays
    trial = bench_with(bench, build_model(config, bench.task, scan_backend=bench.numerics.model_backend), config)
    trial.restore(start.state)
    return trial, dict.fromkeys(PATHS, 0.0)


CHANGE = Change(
    name="no_weight_decay",
    label="no weight decay",
    how="without weight decay",
    line="line-6",
    make=make,
    place=usual_place(55.0, decay=1.0),  # a decay kills only together with a large rate, which the tenth of the rate shows
)
