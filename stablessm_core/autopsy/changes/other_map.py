"""The eigenvalues are the same, but a guarded map computes them from other weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stablessm_core.autopsy.change import Change, NotPossible, usual_place
from stablessm_core.maps import MAPS
from stablessm_core.spec.config import RunConfig
from stablessm_core.spec.errors import ConfigError
from stablessm_core.spec.forking import ForkError, forked_config

if TYPE_CHECKING:
    from stablessm_core.autopsy.start import Start, Trial

PREFERRED_MAP = "best"
PATH = "model.reparameterization.name"


def make(start: Start) -> Trial:
    from stablessm_core.autopsy.bench import bench_with
    from stablessm_core.model import build_model
    from stablessm_core.training.checkpoint import Checkpoint
    from stablessm_core.training.forking import forked

    bench, state = start.bench, start.state
    on_host = Checkpoint(state.step, {path: t.cpu() for path, t in state.tensors.items()}, state.state)
    reasons = []
    for name in sorted((name for name, map_ in MAPS.items() if map_.guarded), key=lambda name: name != PREFERRED_MAP):
        try:
            config, changes = forked_config(bench.config.model_dump(mode="json"), {PATH: name})
            if PATH not in changes or _maps(config) == _maps(bench.config):
                continue
            model = build_model(config, bench.task, scan_backend=bench.numerics.model_backend)
            trial = bench_with(bench, model, config)
            changed, _ = forked(on_host, config, trial.model, trial.records)
        except (ConfigError, ForkError) as error:
            reasons.append(str(error))
            continue
        trial.restore(changed)
        return trial, {PATH: name}
    raise NotPossible(reasons[0] if reasons else "no layer of the model has a map that can be chosen")


def _maps(config: RunConfig) -> list[Any]:
    return [config.model.map_of(section) for section in config.model.sections()]


CHANGE = Change(
    name="other_map",
    label="another map",
    how="with another map",
    line="line-1",
    make=make,
    place=usual_place(50.0, crossing=6.0),  # after a crossing, a guarded map cannot cross again
)
