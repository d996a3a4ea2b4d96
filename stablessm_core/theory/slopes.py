"""The curves of the maps: eigenvalue, gradient scale and slope, by weight and by distance to the boundary. Uses numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stablessm_core.maps import MAPS, formulas
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.stability import relative_slope

Array = NDArray[np.float64]
SMALL_STEP = 1e-6  # a step size dt for continuous time that is so small that the state hardly changes in one step


@dataclass(frozen=True)
class Curves:
    """The curves of one map: f(w) and G_f(w) by weight, G_f/|w| and R_f by distance to the stability boundary. All arrays are
    float64.

    w, eigenvalue, gradient_scale: (points,). distance, gradient_over_weight, relative_slope: at most (points,), because some
    maps do not reach every distance. Where a quantity is unbounded, its value is infinite.
    """

    w: Array
    eigenvalue: Array
    gradient_scale: Array
    distance: Array
    gradient_over_weight: Array
    relative_slope: Array


def curves(
    time: str, *, a: float = 1.0, b: float = 0.5, points: int = 400, largest_weight: float = 5.0, largest_distance: float = 1.0
) -> dict[str, Curves]:
    """The curves of every map that has a form in `time`, by name (StableSSM, arXiv 2311.14495, table 5 and figure 6).

    w runs over [-largest_weight, largest_weight]. The distance (1 - lambda in discrete time, -lambda in continuous time) runs
    from 1e-4 to largest_distance. If a map's curve by distance is flat, the map trains eigenvalues at all distances evenly.
    Curves by weight are not comparable between maps.
    """
    w, distance = np.linspace(-largest_weight, largest_weight, points), np.geomspace(1e-4, largest_distance, points)
    return {name: _curves(name, time, w, distance, a, b) for name, map_ in MAPS.items() if time in map_.forms}


def relative_slope_at(name: str, time: str, eigenvalue: ArrayLike, *, a: float = 1.0, b: float = 0.5) -> Array:
    """R_f(w) at f(w) = eigenvalue: |f'(w)| / (1 - |f(w)|) in discrete time, |f'(w)| / |f(w)| in continuous time
    (the limit for dt -> 0).

    A weight step dw moves the eigenvalue by the fraction R_f |dw| of its distance to the boundary. Raises ValueError, which
    names the reachable interval, for an eigenvalue that the map does not reach.
    """
    w = _weight(name, time, eigenvalue, a, b)
    form = Form.of_map(name, time, a=a, b=b)
    slope: Array = relative_slope(form, {"weight": w, "dt": np.full_like(w, SMALL_STEP)})
    return slope


def gradient_over_weight(name: str, time: str, eigenvalue: ArrayLike, *, a: float = 1.0, b: float = 0.5) -> Array:
    """G_f(w)/|w| at f(w) = eigenvalue: the bound of the recorded |dLoss/dw| / |w|, up to a constant.

    Raises ValueError, which names the reachable interval, for an eigenvalue that the map does not reach.
    """
    w, map_ = _weight(name, time, eigenvalue, a, b), formulas(name, time, np, a=a, b=b)
    with np.errstate(divide="ignore", over="ignore"):
        ratio: Array = np.where(w == 0, map_.ratio_at_zero, map_.gradient_scale(w) / np.where(w == 0, 1, np.abs(w)))
    return ratio


def _weight(name: str, time: str, eigenvalue: ArrayLike, a: float, b: float) -> Array:
    lambda_, map_ = np.asarray(eigenvalue, dtype=np.float64), formulas(name, time, np, a=a, b=b)
    for value in lambda_.flat:
        if not map_.reachable.contains(float(value)):
            raise ValueError(f"eigenvalue {value:g} is unreachable: {name!r} ({time}) reaches {map_.reachable} only")
    w: Array = map_.inverse(lambda_)
    return w


def gentlest_maps(time: str, eigenvalue: float) -> list[tuple[str, float]]:
    """(name, G_f(w)/|w| at this eigenvalue) for each guarded map that reaches the eigenvalue, smallest ratio first."""
    guarded = [name for name, map_ in MAPS.items() if map_.guarded and time in map_.forms]
    reaching = [name for name in guarded if formulas(name, time, np).reachable.contains(eigenvalue)]
    return sorted(((name, float(gradient_over_weight(name, time, eigenvalue))) for name in reaching), key=lambda pair: pair[1])


def _curves(name: str, time: str, w: Array, distance: Array, a: float, b: float) -> Curves:
    edge, map_ = 1.0 if time == "discrete" else 0.0, formulas(name, time, np, a=a, b=b)
    # check the rounded eigenvalue that is inverted below, because rounding may move it across a closed end of the interval
    reached = distance[[map_.reachable.contains(float(edge - d)) for d in distance]]
    ratio = gradient_over_weight(name, time, edge - reached, a=a, b=b)
    slope = relative_slope_at(name, time, edge - reached, a=a, b=b)
    with np.errstate(divide="ignore", over="ignore"):
        return Curves(w, map_.f(w), map_.gradient_scale(w), reached, ratio, slope)
