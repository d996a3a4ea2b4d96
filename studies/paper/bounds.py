"""Table 5 and figures 2 and 6: gradient bounds of the maps near the stability boundary, computed exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablessm_core.maps import MAPS, formulas
from stablessm_core.theory import gradient_bound, gradient_over_weight, published_gradient_bound, stability_of_map

Array = NDArray[np.float64]
LAMBDAS = (0.9, 0.99, 0.999, 0.9999)
SHOWN = ("best", "exp", "softplus", "tanh", "relu", "direct")
NEAR = np.geomspace(1e-5, 0.4, 61)  # distances to the boundary
NEGATIVE = (-0.1, -0.5, -0.9, -0.96)
LENGTH = 100_000  # of the sequences of figure 2; saturation begins where 1 - lambda < 1 / LENGTH

# the gradient norm functions of table 5 as published, for weights with 0 < lambda < 1 or lambda < 0
PUBLISHED: dict[tuple[str, str], Callable[[Array], Array]] = {
    ("relu", "continuous"): lambda w: 1 / w**2,
    ("exp", "continuous"): lambda w: np.exp(-w),
    ("softplus", "continuous"): lambda w: np.exp(w) / ((1 + np.exp(w)) * np.log1p(np.exp(w)) ** 2),
    ("best", "continuous"): lambda w: 2 * np.abs(w),
    ("relu", "discrete"): lambda w: np.exp(-w) / np.expm1(-w) ** 2,
    ("exp", "discrete"): lambda w: np.exp(w - np.exp(w)) / np.expm1(-np.exp(w)) ** 2,
    ("softplus", "discrete"): lambda w: np.exp(-w),
    ("tanh", "discrete"): lambda w: np.exp(2 * w),
    ("best", "discrete"): lambda w: 2 * np.abs(w),
}


def ratio_table() -> dict[str, Any]:
    """G / |w| of each map at the eigenvalues LAMBDAS, in discrete time."""
    columns = ["λ", *SHOWN]
    ratios = {name: gradient_over_weight(name, "discrete", LAMBDAS) for name in SHOWN}
    rows = [[f"{lambda_:g}", *(float(ratios[name][i]) for name in SHOWN)] for i, lambda_ in enumerate(LAMBDAS)]
    return {"caption": "G / |w| by eigenvalue, discrete time", "columns": columns, "rows": rows}


def ratio_figure() -> dict[str, Any]:
    """G / |w| of each map over the distance to the boundary, in discrete time."""
    lines = {}
    for name in SHOWN:
        distance = [float(d) for d in NEAR if formulas(name, "discrete", np).reachable.contains(1 - float(d))]
        ratio = gradient_over_weight(name, "discrete", [1 - d for d in distance])
        lines[name] = {"x": distance, "y": ratio.tolist()}
    return {"chart": "paper_ratio", "caption": "G / |w| by distance to the boundary, discrete time.", "lines": lines}


def formula_errors() -> dict[tuple[str, str], float]:
    """The largest relative difference between each published formula and |f'| / f² or |f'| / (1 - f)², over -1 < λ < 0 in
    continuous time and 0 < λ < 1 in discrete time. f' is computed from differences of f, not from a formula."""
    found = {}
    for (name, time), published in PUBLISHED.items():
        map_ = formulas(name, time, np)
        wanted = -np.geomspace(0.01, 0.9, 25) if time == "continuous" else np.linspace(0.05, 0.99, 25)
        w = np.array([map_.inverse(np.float64(one)) for one in wanted if map_.reachable.contains(float(one))])
        h = 1e-5 * np.maximum(np.abs(w), 0.1)
        slope = np.abs(map_.f(w + h) - map_.f(w - h)) / (2 * h)
        f = map_.f(w)
        right = slope / (f**2 if time == "continuous" else (1 - f) ** 2)
        found[name, time] = float(np.max(np.abs(published(w) - right) / right))
    return found


def formula_table() -> dict[str, Any]:
    """The largest relative error of each published formula."""
    rows = [[name, time, error] for (name, time), error in formula_errors().items()]
    return {"caption": "Largest relative difference of the published formulas from |f'| / f² and |f'| / (1 - f)²",
            "columns": ["map", "time", "difference"], "rows": rows}  # fmt: skip


def negative_table() -> dict[str, Any]:
    """G of best at negative eigenvalues: as published, 2|w|, and the true bound, the sum of k |λ|^(k-1) |f'|, k = 1, 2, …"""
    rows = [[f"{lambda_:g}", *_at_negative(lambda_)] for lambda_ in NEGATIVE]
    return {"caption": "The bound of best at negative eigenvalues", "columns": ["λ", "w", "published", "the sum"], "rows": rows}


def negative_figure() -> dict[str, Any]:
    """The published bound of best and the sum, over the distance 1 + λ of negative eigenvalues to the boundary."""
    x = np.geomspace(2e-3, 0.95, 41)
    found = [_at_negative(float(d) - 1) for d in x]
    lines = {name: {"x": x.tolist(), "y": [one[i] for one in found]} for i, name in ((1, "published, 2|w|"), (2, "the sum"))}
    return {"chart": "paper_negative", "caption": "The gradient bound of best at negative eigenvalues.", "lines": lines}


def _at_negative(lambda_: float) -> tuple[float, float, float]:
    """The weight of best, the published bound, and the true bound."""
    w = float(formulas("best", "discrete", np).inverse(np.float64(lambda_)))
    return w, float(published_gradient_bound("best", "discrete", w)), float(gradient_bound("best", "discrete", w))


def scaling() -> dict[str, Any]:
    """Figure 2: the largest output of h = λ h + x with |x| <= 1, and its largest derivative by λ, on sequences of LENGTH steps.

    Output: sum of λ^k = (1 - λ^T) / (1 - λ). Derivative: sum of k λ^(k-1). Both are exact sums.
    """
    distance = np.geomspace(1e-3, 0.4, 31)
    k = np.arange(LENGTH, dtype=np.float64)
    output, gradient = [], []
    for lambda_ in 1 - distance:
        powers = lambda_**k
        output.append(float(powers.sum()))
        gradient.append(float((k[1:] * powers[:-1]).sum()))
    lines = {"output": {"x": distance.tolist(), "y": output}, "gradient": {"x": distance.tolist(), "y": gradient}}
    return {
        "chart": "paper_scaling",
        "caption": "Largest output and largest gradient by distance to the boundary.",
        "lines": lines,
    }


def scaling_table() -> dict[str, Any]:
    """The powers of 1 - λ with which output and gradient grow, as measured and as the paper states them."""
    lines = scaling()["lines"]
    rows = [["output", slope_of(lines["output"]), -1.0], ["gradient", slope_of(lines["gradient"]), -2.0]]
    return {"caption": "Power of 1 - λ", "columns": ["", "measured", "bound of the paper"], "rows": rows}


def slope_of(line: Mapping[str, Sequence[float]]) -> float:
    """The slope of a line in a figure with two logarithmic axes, by least squares over distances below 0.1."""
    x, y = np.log(np.asarray(line["x"])), np.log(np.asarray(line["y"]))
    near = np.asarray(line["x"]) < 0.1
    return float(np.polyfit(x[near], y[near], 1)[0])


def guarded_ratios(name: str) -> Array:
    """G / |w| of a map at the distances NEAR that it reaches with λ > 0."""
    return gradient_over_weight(name, "discrete", [1 - float(d) for d in NEAR if MAPS[name] and d < 1])


def stability_table(betas: Sequence[float] = (0.01, 0.1, 1.0)) -> dict[str, Any]:
    """g(β) of definition 3.4 in continuous time, found numerically, for each map of table 5."""
    names = ("best", "exp", "softplus", "relu", "direct")
    found = {name: stability_of_map(name, "continuous", betas).g for name in names}
    rows = [[f"{beta:g}", *(float(found[name][i]) for name in names)] for i, beta in enumerate(betas)]
    return {"caption": "The supremum of definition 3.4 by size of the noise β", "columns": ["β", *names], "rows": rows}
