"""The gradient bound of theorem 3.6 and the output bound of figure 2, for endless and for finite sequences. Uses numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stablessm_core.maps import formulas

Array = NDArray[np.float64]


def gradient_bound(
    name: str, time: str, w: ArrayLike, *, a: float = 1.0, b: float = 0.5, c: float = 1.0, length: int | None = None
) -> Array:
    """The largest |dy/dw| of y = c h over all inputs with |x| <= 1, where lambda = f(w); an array of the shape of w.

    Discrete time, h_k = lambda h_(k-1) + x_k: |c f'(w)| sum_(k=1)^(length-1) k |lambda|^(k-1). For length None the sum is
    1 / (1 - |lambda|)^2. The published bound (StableSSM, equation 16) has (1 - lambda)^2 instead, which is too small if lambda
    is negative: see `published_gradient_bound`. Continuous time, h' = lambda h + x: |c f'(w)| times the integral of
    s e^(lambda s) from 0 to `length`; for length None it is 1 / lambda^2.

    w: any shape. length: steps in discrete time, units of time in continuous time. Where |lambda| >= 1 (lambda >= 0 in
    continuous time), the result for length None is infinite, or 0 where the map is flat. Raises ValueError for an unknown map
    or time, and for a length below 1.
    """
    _check_length(length)
    weight, map_ = np.asarray(w, np.float64), formulas(name, time, np, a=a, b=b)
    with np.errstate(all="ignore"):
        slope = np.abs(map_.derivative(weight))
        if length is None:
            outside = map_.boundary_distance(weight, np.ones_like(weight)) <= 0
            scale = np.where(outside & (slope > 0), np.inf, map_.gradient_scale(weight))
        else:
            sum_ = _derivative_sum if time == "discrete" else _derivative_integral
            scale = np.where(slope > 0, slope * sum_(map_.f(weight), length), 0.0)
    return np.where(np.isnan(weight), np.nan, abs(c) * scale)


def published_gradient_bound(name: str, time: str, w: ArrayLike, *, a: float = 1.0, b: float = 0.5, c: float = 1.0) -> Array:
    """The bound as the paper states it: |c f'(w)| / f(w)^2 in continuous time, |c f'(w)| / (1 - f(w))^2 in discrete time
    (StableSSM, equations 15 and 16). In discrete time it is no bound where f(w) < 0."""
    weight, map_ = np.asarray(w, np.float64), formulas(name, time, np, a=a, b=b)
    with np.errstate(all="ignore"):
        distance = np.abs(map_.f(weight)) if time == "continuous" else np.abs(1 - map_.f(weight))
        bound: Array = abs(c) * np.abs(map_.derivative(weight)) / distance / distance
    return bound


def output_bound(lambda_: ArrayLike, *, c: float = 1.0, length: int | None = None) -> Array:
    """The largest |y| of y = c h, h_k = lambda h_(k-1) + x_k, over all inputs with |x| <= 1: |c| sum_(k<length) |lambda|^k.

    For length None it is |c| / (1 - |lambda|), infinite where |lambda| >= 1 (StableSSM, figure 2). On a finite sequence it
    becomes flat, at |c| length, where 1 - |lambda| is below 1 / length. The result has the shape of lambda_.
    """
    _check_length(length)
    p = np.abs(np.asarray(lambda_, np.float64))
    with np.errstate(all="ignore"):
        if length is None:
            return np.where(p < 1, abs(c) / (1 - p), np.where(np.isnan(p), np.nan, np.inf))
        sum_ = np.expm1(length * np.log(p)) / (p - 1)
    return abs(c) * np.where(p == 1, float(length), np.where(p == 0, 1.0, sum_))


def _derivative_sum(lambda_: Array, length: int) -> Array:
    """sum_(k=1)^(length-1) k |lambda|^(k-1), added term by term, because the closed form cancels near |lambda| = 1."""
    k = np.arange(1, length, dtype=np.float64)
    sums = [float(k @ np.abs(one) ** (k - 1)) for one in lambda_.flat]
    return np.array(sums).reshape(lambda_.shape)


def _derivative_integral(lambda_: Array, length: float) -> Array:
    """The integral of s e^(lambda s) from 0 to length; length^2 / 2 at lambda = 0."""
    x = lambda_ * length
    near_zero = np.abs(x) < 1e-4
    safe = np.where(near_zero, 1.0, x)
    return length**2 * np.where(near_zero, 0.5 + x / 3, (np.exp(safe) * (safe - 1) + 1) / safe**2)


def _check_length(length: int | None) -> None:
    if length is not None and length < 1:
        raise ValueError(f"length is {length}; need at least 1, or None for endless sequences")
