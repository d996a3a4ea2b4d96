"""The settings that a fork may change, and the weights that keep every eigenvalue unchanged under a new map.

A fork is a run that starts from a checkpoint of another run with changed settings. A fork keeps the weights and the batches (a
batch depends only on seed and step). A fork may change, for example, the map, the learning rate or the optimizer. If the
original run diverged and the fork does not, the changed setting was a cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stablessm_core.map import Interval
from stablessm_core.maps import formulas
from stablessm_core.spec.config import RunConfig, parse_config
from stablessm_core.spec.errors import ConfigError
from stablessm_core.spec.model import LayerMap
from stablessm_core.spec.paths import leaves, with_settings

NAMING = ("name", "tags")  # fields that only label a run; they have no effect on its training
# sections that a fork may change, except the fields in FIXED; they determine neither the shapes of the weights nor the task
CHANGEABLE = ("model.reparameterization", "optimizer", "train", "telemetry", "alerts")
FIXED = ("model.reparameterization.time", "train.seed")
ALLOWED = (
    "model.reparameterization.name, .a and .b, optimizer.*, train.* except the seed, telemetry.*, alerts.*; "
    "a clone starts at the first step and may change everything"
)
FROZEN = "optimizer.recurrent_lr"


class ForkError(ValueError):
    """Raised for a fork that cannot start. The message is one sentence for users."""


class Unreachable(ForkError):
    """Raised if the new map cannot reach an eigenvalue of the checkpoint."""

    def __init__(self, index: int, value: float, map_: LayerMap, reach: Interval, layer: int) -> None:
        self.index, self.value, self.reach = index, value, reach
        super().__init__(
            f"eigenvalue {index} of layer {layer} is {value:.9g}, which {map_.name!r} ({map_.time} time) cannot reach: "
            f"it reaches {reach}"
        )


def forked_config(original: Mapping[str, Any], changes: Mapping[str, Any]) -> tuple[RunConfig, dict[str, Any]]:
    """The fork's configuration, and its differences from the original, keyed by dotted path. Name and tags are not compared.

    Raises ConfigError for an invalid value and for a field that a fork cannot change.
    """
    config = parse_config(with_settings(original, changes))
    differs = differences(parse_config(original), config)
    refuse_fixed(differs)
    return config, differs


def differences(original: RunConfig, config: RunConfig) -> dict[str, Any]:
    """The values of `config` that differ from `original`, keyed by dotted path. Name and tags are not compared."""
    before, after = leaves(original.model_dump(mode="json")), leaves(config.model_dump(mode="json"))
    missing = object()
    changed = (path for path in before | after if path not in NAMING and before.get(path, missing) != after.get(path, missing))
    return {path: after.get(path) for path in changed}


def refuse_fixed(differs: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first field that a fork cannot change."""
    for path in differs:
        if path in FIXED or not any(path == part or path.startswith(f"{part}.") for part in CHANGEABLE):
            raise ConfigError([(path, "cannot change in a fork, which keeps the original's weights, task and batches", ALLOWED)])


def carried_weights(w: np.ndarray, old: LayerMap, new: LayerMap, layer: int = 0) -> np.ndarray:
    """The weights w' with f_new(w') = f_old(w), so that the eigenvalues stay the same; float32 in w's shape.

    The computation is in float64, and the result is rounded once. Together with the float32 rounding of both maps, this changes
    no stable lambda_bar by more than 4 * 2^-24 = 2.4e-7. Raises Unreachable if the new map cannot reach an eigenvalue.
    """
    weights = np.asarray(w, np.float64)
    target = formulas(new.name, new.time, np, a=new.a, b=new.b)
    with np.errstate(all="ignore"):
        lambda_ = np.asarray(formulas(old.name, old.time, np, a=old.a, b=old.b).f(weights))
        for index in np.flatnonzero(~_inside(lambda_, target.reachable)):
            raise Unreachable(int(index), float(lambda_.flat[index]), new, target.reachable, layer)
        return np.asarray(target.inverse(lambda_), np.float32)


def summarize_changes(changes: Mapping[str, Any]) -> str:
    """The settings that a fork changes, as text: "recurrent_lr 0, reparameterization best", or "nothing (a replay)"."""
    if not changes:
        return "nothing (a replay)"
    words = []
    for path, value in changes.items():
        parts = path.split(".")
        words.append(f"{parts[-2] if parts[-1] == 'name' and len(parts) > 1 else parts[-1]} {_value(value)}")
    return ", ".join(words)


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "null" if value is None else str(value)


def _inside(lambda_: np.ndarray, reach: Interval) -> np.ndarray:
    above = (lambda_ >= reach.low) if reach.closed_low else (lambda_ > reach.low)
    below = (lambda_ <= reach.high) if reach.closed_high else (lambda_ < reach.high)
    return np.asarray(above & below & np.isfinite(lambda_))
