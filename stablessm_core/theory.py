"""What the theory says about the maps, as numbers for charts and tables. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stablessm_core.forms import Form
from stablessm_core.maps import MAPS, formulas
from stablessm_core.stability import relative_slope

Array = NDArray[np.float64]
RIDGE = 1e-6
SMALL_STEP = 1e-6  # dt in continuous time: R_f where one step moves the state but little


@dataclass(frozen=True)
class Curves:
    """One map: eigenvalue f(w) and G_f(w) over w; G_f/|w| and R_f over the eigenvalue's distance to the stability boundary.

    All float64; w, eigenvalue, gradient_scale (points,); distance, gradient_over_weight, relative_slope (at most points,): what
    the map reaches. Infinite where the bound is.
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
    """Curves of every map that has a form in `time`, by name (StableSSM, arXiv 2311.14495, table 5 and figure 6).

    w runs over [-largest_weight, largest_weight]; the distance, 1 - lambda in discrete and -lambda in continuous time, from 1e-4
    to largest_distance. Comparing maps at an equal eigenvalue rather than an equal w is what shows which one trains evenly: a
    flat curve.
    """
    w, distance = np.linspace(-largest_weight, largest_weight, points), np.geomspace(1e-4, largest_distance, points)
    return {name: _curves(name, time, w, distance, a, b) for name, map_ in MAPS.items() if time in map_.forms}


def relative_slope_at(name: str, time: str, eigenvalue: ArrayLike, *, a: float = 1.0, b: float = 0.5) -> Array:
    """R_f(w) at f(w) = eigenvalue: |f'(w)| / (1 - |f(w)|) in discrete, |f'(w)| / |f(w)| in continuous time (dt to 0).

    A step dw of the weight moves the eigenvalue by R_f |dw| of its distance to the boundary. Raises ValueError for an eigenvalue
    the map does not reach, naming the interval it does.
    """
    w = _weight(name, time, eigenvalue, a, b)
    form = Form.of_map(name, time, a=a, b=b)
    slope: Array = relative_slope(form, {"weight": w, "dt": np.full_like(w, SMALL_STEP)})
    return slope


def gradient_over_weight(name: str, time: str, eigenvalue: ArrayLike, *, a: float = 1.0, b: float = 0.5) -> Array:
    """G_f(w)/|w| at f(w) = eigenvalue: up to a constant the bound of the monitored |dLoss/dw| / |w|.

    Raises ValueError for an eigenvalue the map does not reach, naming the interval it does.
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


def nearest_memory(lambda_bar: ArrayLike, memory: ArrayLike, steps: ArrayLike) -> Array:
    """The memory nearest to `memory` that an ordinary readout of these eigenvalues has: sum_i g_i lambda_bar_i^t at `steps` t.

    The g make the mean squared relative error plus RIDGE |g|^2 smallest: without the second term weights of any size, which no
    training finds and float32 does not bear, would cancel each other. memory, steps: (points,), memory nowhere 0; lambda_bar:
    (d_state,), those outside the unit circle are left out. Gives (points,).
    """
    wanted, t = np.asarray(memory, dtype=np.float64), np.asarray(steps, dtype=np.float64)
    modes = np.asarray(lambda_bar, dtype=np.float64)
    modes = modes[np.abs(modes) <= 1]
    with np.errstate(under="ignore"):
        powers = np.abs(modes)[None, :] ** t[:, None] * np.where((modes < 0) & (t % 2 == 1)[:, None], -1.0, 1.0)
    rows = powers / wanted[:, None] / math.sqrt(max(len(wanted), 1))
    ridge = math.sqrt(RIDGE) * np.eye(len(modes))
    target = np.concatenate([np.full(len(wanted), 1 / math.sqrt(max(len(wanted), 1))), np.zeros(len(modes))])
    g, *_ = np.linalg.lstsq(np.concatenate([rows, ridge]), target, rcond=None)
    found: Array = powers @ g
    return found


def polynomial_memory(steps: ArrayLike, power: float = 1.1) -> Array:
    """(t + 1)^-power at the steps t: what the task of that name asks for. No finite sum of exponentials has it for ever."""
    memory: Array = (1.0 + np.asarray(steps, dtype=np.float64)) ** -power
    return memory


def _curves(name: str, time: str, w: Array, distance: Array, a: float, b: float) -> Curves:
    edge, map_ = 1.0 if time == "discrete" else 0.0, formulas(name, time, np, a=a, b=b)
    # a closed end may lie one rounding away, so it is tested on the very eigenvalue that is inverted
    reached = distance[[map_.reachable.contains(float(edge - d)) for d in distance]]
    ratio = gradient_over_weight(name, time, edge - reached, a=a, b=b)
    slope = relative_slope_at(name, time, edge - reached, a=a, b=b)
    with np.errstate(divide="ignore", over="ignore"):
        return Curves(w, map_.f(w), map_.gradient_scale(w), reached, ratio, slope)
