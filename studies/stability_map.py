"""The stability map: at which sequence length, learning rate and map does a StableSSM layer die, and how large was |lambda|?

In a layer h_t = lambda h_(t-1) + ..., an eigenvalue with |lambda| > 1 multiplies the state by |lambda|^T over T steps. The
largest number of float32 is e^88.72. So a state of size 1 overflows within the sequence if |lambda| exceeds

    lambda* = e^(88.72 / T),

a line without parameters. The activation of the layer, tanh, bounds what the rest of the network sees of a growing state, so
nothing else overflows first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stablessm_core.client import ApiError

if TYPE_CHECKING:
    from stablessm_core.client import Client

LOG_LARGEST = math.log(3.4028234663852886e38)  # 88.72
DISTANCE = "ssm/0/boundary_distance"


@dataclass(frozen=True)
class MapSize:
    """The runs of the stability map."""

    lengths: tuple[int, ...]
    rates: tuple[float, ...]
    maps: tuple[str, ...]
    seeds: int
    steps: int


QUICK_MAP = MapSize((32, 128, 512), (0.03, 0.15), ("direct", "best"), seeds=1, steps=60)
LONG_MAP = MapSize((32, 98, 196, 392, 784), (0.005, 0.02, 0.05, 0.2, 1.0), ("direct", "exp", "best"), seeds=4, steps=150)


@dataclass(frozen=True)
class Point:
    """One run of the stability map.

    largest: the largest |lambda| in the steps that stayed finite, with the weights that computed the step. fatal: the largest
    |lambda| in the fatal step; None if the run lived. Both are NaN if nothing was recorded.
    """

    length: int
    lr: float
    map: str
    seed: int
    largest: float
    fatal: float | None

    @property
    def line(self) -> float:
        return critical(self.length)

    @property
    def shown(self) -> float:
        """The largest |lambda| of the fatal step, or of all steps of a run that lived; 0 if it is unknown."""
        value = self.largest if self.fatal is None else self.fatal
        return value if math.isfinite(value) else 0.0


def critical(length: float) -> float:
    """lambda* = e^(88.72 / length), the |lambda| beyond which a state of size 1 overflows float32 within a sequence."""
    return math.exp(LOG_LARGEST / length)


def map_base(size: MapSize) -> dict[str, Any]:
    """The configuration that all runs of the stability map share."""
    model = {"layer": "stable_ssm", "d_model": 8, "d_state": 8, "n_layers": 1, "mlp_expansion": 1}
    train = {"steps": size.steps, "batch_size": 8, "eval_every": 0, "checkpoint_every": 0, "device": "cpu"}
    return {"task": {"name": "polynomial_memory"}, "model": model, "train": train}


def map_grid(size: MapSize) -> dict[str, list[Any]]:
    return {
        "task.length": list(size.lengths),
        "optimizer.lr": list(size.rates),
        "model.reparameterization.name": list(size.maps),
        "train.seed": list(range(size.seeds)),
    }


def read_points(client: Client, runs: Sequence[Mapping[str, Any]]) -> list[Point]:
    """One point per run that finished or diverged."""
    return [_point(client, run) for run in runs if run["status"] in ("finished", "diverged")]


def _point(client: Client, run: Mapping[str, Any]) -> Point:
    config, died = run["config"], run["status"] == "diverged"
    steps, values = _largest(client, run["id"])
    fatal = steps == run["step"] if died else np.zeros_like(steps, bool)
    return Point(
        length=int(config["task"]["length"]),
        lr=float(config["optimizer"]["lr"]),
        map=str(config["model"]["reparameterization"]["name"]),
        seed=int(config["train"]["seed"]),
        largest=float(values[~fatal].max()) if (~fatal).any() else math.nan,
        fatal=(float(values[fatal][0]) if fatal.any() else math.nan) if died else None,
    )


def _largest(client: Client, run_id: int) -> tuple[np.ndarray, np.ndarray]:
    """The recorded steps, and the largest |lambda| of each."""
    try:
        distance = client.series(run_id, DISTANCE)
    except ApiError as error:
        if error.status != 404:
            raise
        return np.empty(0, int), np.empty(0)  # nothing was recorded
    assert distance.value is not None  # every step is asked for, so there are no buckets
    values = 1 - distance.value.reshape(len(distance.step), -1).astype(np.float64).min(axis=1)
    finite = np.isfinite(values)
    return distance.step[finite], values[finite]
