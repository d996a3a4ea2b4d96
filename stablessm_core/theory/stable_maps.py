"""Is a map a stable reparameterization in the sense of definition 3.4? The supremum of the definition, found numerically.

A weight is moved by at most beta. The memory of its eigenvalue then changes by some area; definition 3.4 multiplies this area by
the distance to the boundary and takes the largest value g(beta) over all weights. A map is stable if g(beta) is finite and tends
to 0 with beta. The paper defines this in continuous time. The discrete counterpart here replaces the integral by the sum over
steps, and |f(w)| by 1 - |f(w)|.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stablessm_core.map import Formulas
from stablessm_core.maps import formulas

Array = NDArray[np.float64]
BETAS = (1e-6, 1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0)
DISTANCES = np.geomspace(1e-12, 1e6, 1_801)  # of the tried eigenvalues to the boundary
SMALLEST_DISTANCE = 1e-13  # nearer to the boundary, rounding and underflow would decide
NEIGHBOURS = np.concatenate([-np.geomspace(1e-3, 1, 16)[::-1], [0.0], np.geomspace(1e-3, 1, 16)])  # tried shifts of w, over beta
VANISHES = 0.05  # g at BETAS[0] must be below this value


@dataclass(frozen=True)
class MapStability:
    """What definition 3.4 finds for one map.

    beta, g, worst_eigenvalue: (sizes,) float64. g: the supremum for each size of the noise, infinite if some weight can be
    moved onto or across the boundary. worst_eigenvalue: lambda = f(w) of the weight that gives g. stable: g is finite for all
    sizes, and vanishes with beta. reason: one sentence. The supremum is taken over a grid of weights, so g is a lower bound; it
    is exact to about 1 percent for the maps of this package.
    """

    name: str
    time: str
    beta: Array
    g: Array
    worst_eigenvalue: Array
    stable: bool
    reason: str


def stability_of_map(name: str, time: str, betas: Sequence[float] = BETAS, *, a: float = 1.0, b: float = 0.5) -> MapStability:
    """g(beta) of definition 3.4 (StableSSM, equation 12) for a map, by name, and whether the map is stable.

    Continuous time: sup_w |f(w)| sup_(|v-w| <= beta) of the integral of |e^(f(v) t) - e^(f(w) t)| over t >= 0. The exponentials
    do not cross, so that the integral is |1/f(v) - 1/f(w)|. Discrete time: sup_w (1 - |f(w)|) sup_v sum_k |f(v)^k - f(w)^k|.
    betas: positive and rising. Raises ValueError otherwise, and for an unknown map or time.
    """
    beta = np.asarray(betas, np.float64)
    if beta.ndim != 1 or not len(beta) or not (beta > 0).all() or (np.diff(beta) <= 0).any():
        raise ValueError(f"betas are {list(betas)}; need one or more positive numbers, each larger than the one before")
    map_ = formulas(name, time, np, a=a, b=b)
    found = [_supremum(map_, float(size)) for size in beta]
    g, worst = np.array([one[0] for one in found]), np.array([one[1] for one in found])
    smallest = min(float(beta[0]), BETAS[0])
    stable, reason = _judgement(time, beta, g, worst, smallest, _supremum(map_, smallest)[0])
    return MapStability(name, time, beta, g, worst, stable, reason)


def largest_g_of_best(beta: float, *, a: float = 1.0, b: float = 0.5) -> float:
    """a beta^2 / b + beta sqrt(a / b), a valid g(beta) for the map best in continuous time.

    The g of the paper (remark C.4), a (beta^2 + 2 beta w) / b, still contains w. The supremum over w of
    (a beta^2 + 2 a beta w) / (a w^2 + b) is at most the sum of the two suprema, a beta^2 / b and beta sqrt(a / b).
    """
    return a * beta**2 / b + beta * float(np.sqrt(a / b))


def _supremum(map_: Formulas, beta: float) -> tuple[float, float]:
    """g(beta), and the eigenvalue of the weight that gives it."""
    w = _weights(map_, beta)
    changes = _largest_change(map_, w, beta)
    worst = int(np.argmax(changes))
    return float(changes[worst]), float(map_.f(w[worst : worst + 1])[0])


def _weights(map_: Formulas, beta: float) -> Array:
    """The weights to try: those of eigenvalues at all DISTANCES, and those that are about beta away from a kink or a zero."""
    eigenvalues = -DISTANCES if map_.time == "continuous" else np.concatenate([1 - DISTANCES, DISTANCES - 1])
    if map_.time == "discrete":
        eigenvalues = eigenvalues[np.abs(eigenvalues) < 1]
    reached = np.array([one for one in eigenvalues if map_.reachable.contains(float(one))])
    near_zero = np.concatenate([[0.0], np.geomspace(1e-9, 1e3, 400), beta * np.linspace(0.5, 1.5, 41)])
    with np.errstate(all="ignore"):
        w = map_.inverse(reached)
        edges = np.array([map_.inverse(np.array([end]))[0] for end in _closed_ends(map_)])
    w = np.concatenate([w, -w, near_zero, -near_zero, *(edge + beta * np.linspace(-1.5, 1.5, 61) for edge in edges)])
    w = w[np.isfinite(w)]
    distance = -map_.f(w) if map_.time == "continuous" else map_.boundary_distance(w)
    tried: Array = w[distance >= SMALLEST_DISTANCE]
    return tried


def _closed_ends(map_: Formulas) -> list[float]:
    interval = map_.reachable
    return [end for end, closed in ((interval.low, interval.closed_low), (interval.high, interval.closed_high)) if closed]


def _largest_change(map_: Formulas, w: Array, beta: float) -> Array:
    """sup over |v - w| <= beta of the scaled area between the two memories; (weights,)."""
    largest = np.zeros(len(w))
    for shift in NEIGHBOURS:
        v = w + beta * shift
        largest = np.fmax(largest, _continuous(map_, w, v) if map_.time == "continuous" else _discrete(map_, w, v))
    return largest


def _continuous(map_: Formulas, w: Array, v: Array) -> Array:
    with np.errstate(all="ignore"):
        before, after = -map_.f(w), -map_.f(v)
        return np.where(after > 0, np.abs(before / after - 1), np.inf)


def _discrete(map_: Formulas, w: Array, v: Array) -> Array:
    """(1 - |f(w)|) sum_k |f(v)^k - f(w)^k|, from the distances to the boundary, so that nothing cancels near it."""
    with np.errstate(all="ignore"):
        d, e = map_.boundary_distance(w), map_.boundary_distance(v)
        p, q = 1 - d, 1 - e
        same_sign = np.abs(d / e - 1)
        # with opposite signs, even powers subtract and odd powers add
        p2, q2 = d * (1 + p), e * (1 + q)  # 1 - p^2, 1 - q^2
        opposite = d * (np.abs(1 / p2 - 1 / q2) + p / p2 + q / q2)
        area = np.where(np.sign(map_.f(w)) * np.sign(map_.f(v)) < 0, opposite, same_sign)
        return np.where(e > 0, area, np.inf)


def _judgement(time: str, beta: Array, g: Array, worst: Array, smallest: float, vanishing: float) -> tuple[bool, str]:
    """Whether the map is stable, and why. vanishing: g at the size `smallest`."""
    if not np.isfinite(g).all():
        first = int(np.argmax(~np.isfinite(g)))
        side = "0" if time == "continuous" else "1" if worst[first] >= 0 else "-1"
        return False, f"Noise of size {beta[first]:g} moves an eigenvalue onto or across the boundary at {side}."
    if vanishing > VANISHES:
        return False, f"g is still {vanishing:.3g} for noise of size {smallest:g}."
    return True, f"g is finite for noise up to {beta[-1]:g}, and falls to {vanishing:.2g} for noise of size {smallest:g}."
