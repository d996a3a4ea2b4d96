"""What a fork may change, and the weights with which another map has every eigenvalue where it was. Pure numpy, no torch.

A fork goes on from a checkpoint of another run, with other settings: the same weights, the same batches (they follow from seed
and step), another map, learning rate or optimizer. So a supposed cause can be tested: take it away and see whether the run lives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stablessm_core.config import ConfigError, LayerMap, RunConfig, parse_config, with_settings
from stablessm_core.maps import Interval, formulas

NAMING = ("name", "tags")  # for people: no change of the run
# whole sections, and single fields: what changes neither the shape of a weight nor what is learned
CHANGEABLE = ("model.reparameterization", "optimizer", "train", "telemetry", "alerts")
FIXED = ("model.reparameterization.time", "train.seed")
ALLOWED = (
    "model.reparameterization.name, .a and .b, optimizer.*, train.* but the seed, telemetry.*, alerts.*; "
    "a clone may change everything, from its first step on"
)
FROZEN = "optimizer.recurrent_lr"


class ForkError(ValueError):
    """A fork that cannot begin; the text is one sentence for people."""


class Unreachable(ForkError):
    """An eigenvalue that the new map cannot have."""

    def __init__(self, index: int, value: float, map_: LayerMap, reach: Interval, layer: int) -> None:
        self.index, self.value, self.reach = index, value, reach
        super().__init__(
            f"eigenvalue {index} of layer {layer} is {value:.9g}, which {map_.name!r} ({map_.time} time) cannot reach: "
            f"it reaches {reach}"
        )


def forked_config(original: Mapping[str, Any], changes: Mapping[str, Any]) -> tuple[RunConfig, dict[str, Any]]:
    """The fork's configuration, and what differs from the original's by dotted path, names and tags left out.

    Raises ConfigError for a value that is not possible, and for a field that a fork cannot change.
    """
    config = parse_config(with_settings(original, changes))
    differs = differences(parse_config(original), config)
    refuse_fixed(differs)
    return config, differs


def differences(original: RunConfig, config: RunConfig) -> dict[str, Any]:
    """The fork's value of every field that differs, by dotted path."""
    before, after = leaves(original.model_dump(mode="json")), leaves(config.model_dump(mode="json"))
    missing = object()
    changed = (path for path in before | after if path not in NAMING and before.get(path, missing) != after.get(path, missing))
    return {path: after.get(path) for path in changed}


def refuse_fixed(differs: Mapping[str, Any]) -> None:
    """Raises ConfigError for the first field that a fork cannot change."""
    for path in differs:
        if path in FIXED or not any(path == part or path.startswith(f"{part}.") for part in CHANGEABLE):
            raise ConfigError([(path, "cannot change in a fork, whose weights, task and batches are the original's", ALLOWED)])


def carried_weights(w: np.ndarray, old: LayerMap, new: LayerMap, layer: int = 0) -> np.ndarray:
    """The weights with which `new` has the eigenvalues that `old` has with `w`: f_new(w') = f_old(w), float32 in w's shape.

    Computed in float64 and rounded once: what is left is the rounding of w' and that of both maps in float32, by which no
    lambda_bar inside the boundary moves more than 4 * 2^-24 = 2.4e-7. Raises Unreachable.
    """
    weights = np.asarray(w, np.float64)
    target = formulas(new.name, new.time, np, a=new.a, b=new.b)
    with np.errstate(all="ignore"):
        lambda_ = np.asarray(formulas(old.name, old.time, np, a=old.a, b=old.b).f(weights))
        for index in np.flatnonzero(~_inside(lambda_, target.reachable)):
            raise Unreachable(int(index), float(lambda_[index]), new, target.reachable, layer)
        return np.asarray(target.inverse(lambda_), np.float32)


def said(changes: Mapping[str, Any]) -> str:
    """What a fork changes, in words: "recurrent_lr 0, reparameterization best", or "nothing (a replay)"."""
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


def leaves(section: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every value of a decoded configuration by its dotted path."""
    found: dict[str, Any] = {}
    for name, value in section.items():
        path = f"{prefix}{name}"
        found |= leaves(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return found
