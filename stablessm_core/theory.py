"""What the theory says about the maps, as numbers for charts and tables. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stablessm_core.maps import MAPS, formulas

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Curves:
    """One map: eigenvalue f(w) and G_f(w) over w; G_f/|w| over the eigenvalue's distance to the stability boundary.

    All float64; w, eigenvalue, gradient_scale (points,); distance, gradient_over_weight (at most points,): what the map reaches.
    Infinite where the bound is.
    """

    w: Array
    eigenvalue: Array
    gradient_scale: Array
    distance: Array
    gradient_over_weight: Array


def curves(
    time: str, *, a: float = 1.0, b: float = 0.5, points: int = 400, largest_weight: float = 5.0, largest_distance: float = 1.0
) -> dict[str, Curves]:
    """Curves of every map that has a form in `time`, by name (StableSSM, arXiv 2311.14495, table 5 and figure 6).

    w runs over [-largest_weight, largest_weight]; the distance, 1 - lambda in discrete and -lambda in continuous time, from 1e-4
    to largest_distance. Comparing maps at an equal eigenvalue rather than an equal w is what shows which one trains evenly: a
    flat curve.
    """
    w, distance = np.linspace(-largest_weight, largest_weight, points), np.geomspace(1e-4, largest_distance, points)
    return {name: _curves(name, time, w, distance, a, b) for name, map_ in MAPS.items() if time in map_.forms}


def gradient_over_weight(name: str, time: str, eigenvalue: ArrayLike, *, a: float = 1.0, b: float = 0.5) -> Array:
    """G_f(w)/|w| at f(w) = eigenvalue: up to a constant the bound of the monitored |dLoss/dw| / |w|.

    Raises ValueError for an eigenvalue the map does not reach, naming the interval it does.
    """
    lambda_, map_ = np.asarray(eigenvalue, dtype=np.float64), formulas(name, time, np, a=a, b=b)
    for value in lambda_.flat:
        if not map_.reachable.contains(float(value)):
            raise ValueError(f"eigenvalue {value:g} is unreachable: {name!r} ({time}) reaches {map_.reachable} only")
    w = map_.inverse(lambda_)
    with np.errstate(divide="ignore", over="ignore"):
        ratio: Array = np.where(w == 0, map_.ratio_at_zero, map_.gradient_scale(w) / np.where(w == 0, 1, np.abs(w)))
    return ratio


def gentlest_maps(time: str, eigenvalue: float) -> list[tuple[str, float]]:
    """The guarded maps that reach `eigenvalue`, each with its G_f(w)/|w| there, the smallest first."""
    guarded = [name for name, map_ in MAPS.items() if map_.guarded and time in map_.forms]
    reaching = [name for name in guarded if formulas(name, time, np).reachable.contains(eigenvalue)]
    return sorted(((name, float(gradient_over_weight(name, time, eigenvalue))) for name in reaching), key=lambda one: one[1])


def memory_function(lambda_bar: ArrayLike, input_weight: ArrayLike, output_weight: ArrayLike, length: int) -> Array:
    """M(t) = |sum_i c_i b_i lambda_bar_i^t| for t = 0..length-1, (length,) float64.

    The memory function (definition 2.1) of h_t = lambda_bar h_{t-1} + b x_t, y = c h: how much a step in the input at 0 still
    changes the output at t. lambda_bar, input_weight b, output_weight c: (d_state,).
    """
    modes = np.asarray(lambda_bar, dtype=np.float64)
    b, c = np.asarray(input_weight, dtype=np.float64), np.asarray(output_weight, dtype=np.float64)
    if modes.ndim != 1 or not modes.shape == b.shape == c.shape:
        raise ValueError(
            f"lambda_bar, input and output weight are {modes.shape}, {b.shape}, {c.shape}; need one shape (d_state,)"
        )
    weight = b * c
    total = np.empty(length)
    power = np.ones_like(modes)
    with np.errstate(over="ignore", invalid="ignore"):  # unstable modes overflow, as the model itself does
        for t in range(length):
            total[t] = power @ weight
            power *= modes
    return np.abs(total)


def _curves(name: str, time: str, w: Array, distance: Array, a: float, b: float) -> Curves:
    edge, map_ = 1.0 if time == "discrete" else 0.0, formulas(name, time, np, a=a, b=b)
    # a closed end may lie one rounding away, so it is tested on the very eigenvalue that is inverted
    reached = distance[[map_.reachable.contains(float(edge - d)) for d in distance]]
    ratio = gradient_over_weight(name, time, edge - reached, a=a, b=b)
    with np.errstate(divide="ignore", over="ignore"):
        return Curves(w, map_.f(w), map_.gradient_scale(w), reached, ratio)
