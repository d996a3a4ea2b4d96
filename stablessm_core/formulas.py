"""The maps lambda = f(w) as plain formulas, written once for numpy and for torch.

`xp` is the array namespace (`numpy` or `torch`); w may have any shape and a float32 or float64 dtype. Nothing here imports
torch, so the web and the server use the very formulas the trainer uses. Exponentials saturate just below the dtype's largest
number instead of overflowing, and no difference of nearly equal numbers is taken near the stability boundary.

Sources: StableSSM (arXiv 2311.14495) table 5 for relu, exp, softplus, tanh, best; S5's clip (Re lambda <= -1e-4); the
heavy-tail map of Mamba-3; the discrete sigmoid as in gated linear attention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

Array = Any  # numpy.ndarray or torch.Tensor; both namespaces share the functions used here

CLIP_MARGIN = 1e-4
FORMS: dict[str, tuple[str, ...]] = {
    "direct": ("continuous", "discrete"),
    "relu": ("continuous", "discrete"),
    "clip": ("continuous", "discrete"),
    "exp": ("continuous", "discrete"),
    "softplus": ("continuous", "discrete"),
    "tanh": ("discrete",),
    "best": ("continuous", "discrete"),
    "heavytail": ("continuous", "discrete"),
    "sigmoid": ("continuous", "discrete"),
}


@dataclass(frozen=True)
class Interval:
    """Interval of the real line with open or closed ends; prints as in a textbook, for example [-1, 1)."""

    low: float
    high: float
    closed_low: bool = False
    closed_high: bool = False

    def contains(self, x: float) -> bool:
        above = x > self.low or (self.closed_low and x == self.low)
        below = x < self.high or (self.closed_high and x == self.high)
        return above and below

    def __str__(self) -> str:
        return f"{'[' if self.closed_low else '('}{self.low:g}, {self.high:g}{']' if self.closed_high else ')'}"


def reachable_interval(name: str, time: str, *, b: float = 0.5) -> Interval:
    """Eigenvalues lambda that f can give for some finite w; `b` is that of best."""
    inf = math.inf
    if name == "direct":
        return Interval(-inf, inf)
    if time == "continuous":
        return {
            "relu": Interval(-inf, 0.0, closed_high=True),
            "clip": Interval(-inf, -CLIP_MARGIN, closed_high=True),
            "best": Interval(-1.0 / b, 0.0, closed_low=True),
            "sigmoid": Interval(-1.0, 0.0),
        }.get(name, Interval(-inf, 0.0))
    return {
        "relu": Interval(0.0, 1.0, closed_high=True),
        "clip": Interval(CLIP_MARGIN - 1.0, 1.0 - CLIP_MARGIN, closed_low=True, closed_high=True),
        "best": Interval(1.0 - 1.0 / b, 1.0, closed_low=True),
        "tanh": Interval(-1.0, 1.0),
    }.get(name, Interval(0.0, 1.0))


def default_eigenvalue_range(time: str) -> tuple[float, float]:
    """Initial eigenvalues every map can reach: long but not extreme memory.

    In continuous time the step sizes of 1e-3 to 1e-1 make this time constants of 10 to 5,000 steps.
    """
    return (0.5, 0.99) if time == "discrete" else (-0.99, -0.2)


def _saturated(x: Array, xp: Any) -> Array:
    """x, no larger than what exp can take in x's dtype."""
    return xp.clip(x, max=88.0 if x.dtype == xp.float32 else 709.0)


def saturated_exp(x: Array, xp: Any) -> Array:
    """e^x, at most the largest power of e that the dtype holds."""
    return xp.exp(_saturated(x, xp))


def _sigmoid(x: Array, xp: Any) -> Array:
    e = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _softplus(x: Array, xp: Any) -> Array:
    return xp.clip(x, min=0) + xp.log1p(xp.exp(-xp.abs(x)))


def _heavytail(x: Array, xp: Any) -> Array:
    # 1 + x for x >= 0, 1/(1 - x) for x < 0; the clips keep the branch not taken finite
    return xp.where(x >= 0, 1 + x, 1 / (1 - xp.clip(x, max=0)))


def rate(name: str, w: Array, xp: Any, *, a: float = 1.0, b: float = 0.5) -> Array:
    """-f(w) in continuous time: the decay rate of the mode, positive when stable (the name's table row without its sign)."""
    match name:
        case "direct":
            return -w
        case "relu":
            return xp.clip(w, min=0)
        case "clip":
            return xp.clip(-w, min=CLIP_MARGIN)
        case "exp":
            return saturated_exp(w, xp)
        case "softplus":
            return _softplus(w, xp)
        case "best":
            return 1 / (a * w * w + b)
        case "heavytail":
            return _heavytail(w, xp)
        case "sigmoid":
            return _sigmoid(w, xp)
    raise ValueError(f"{name!r} has no continuous form; possible are {[n for n, f in FORMS.items() if 'continuous' in f]}")


def f(name: str, time: str, w: Array, xp: Any, *, a: float = 1.0, b: float = 0.5) -> Array:
    """lambda = f(w)."""
    if time == "continuous":
        return -rate(name, w, xp, a=a, b=b)
    match name:
        case "direct":
            return w
        case "clip":
            return xp.clip(w, CLIP_MARGIN - 1.0, 1.0 - CLIP_MARGIN)
        case "softplus":
            return _sigmoid(-w, xp)
        case "sigmoid":
            return _sigmoid(w, xp)
        case "tanh":
            return xp.tanh(w)
        case "best":
            return 1 - 1 / (a * w * w + b)
        case "relu" | "exp" | "heavytail":
            return xp.exp(-rate(name, w, xp))
    raise ValueError(f"reparameterization is {name!r}; allowed are {sorted(FORMS)}")


def complement(name: str, w: Array, xp: Any, *, a: float = 1.0, b: float = 0.5) -> Array:
    """1 - f(w) in discrete time, without cancellation where f(w) is near 1."""
    match name:
        case "direct" | "clip":
            return 1 - f(name, "discrete", w, xp)
        case "softplus":
            return _sigmoid(w, xp)
        case "sigmoid":
            return _sigmoid(-w, xp)
        case "tanh":
            return 2 * _sigmoid(-2 * w, xp)
        case "best":
            return 1 / (a * w * w + b)
        case "relu" | "exp" | "heavytail":
            return -xp.expm1(-rate(name, w, xp))
    raise ValueError(f"reparameterization is {name!r}; allowed are {sorted(FORMS)}")


def boundary_distance(
    name: str, time: str, w: Array, xp: Any, *, dt: Array | None = None, a: float = 1.0, b: float = 0.5
) -> Array:
    """1 - |lambda_bar|: distance to the stability boundary, negative when unstable.

    Discrete time: lambda_bar = f(w). Continuous time: lambda_bar = exp(dt f(w)), `dt` broadcastable to w (zero-order hold).
    """
    if time == "continuous":
        if dt is None:
            raise ValueError("dt is None; the continuous-time boundary distance needs the step size")
        return -xp.expm1(_saturated(-dt * rate(name, w, xp, a=a, b=b), xp))
    if name == "tanh":
        return 2 * _sigmoid(-2 * xp.abs(w), xp)
    if name in ("direct", "clip"):
        return 1 - xp.abs(f(name, time, w, xp))
    if name == "best":
        d = a * w * w + b
        # lambda < 0 where d < 1; 2 - 1/d would cancel near lambda = -1
        return xp.where(d >= 1, 1 / d, (2 * a * w * w + (2 * b - 1)) / d)
    return complement(name, w, xp)


def lambda_bar(name: str, time: str, w: Array, xp: Any, *, dt: Array | None = None, a: float = 1.0, b: float = 0.5) -> Array:
    """Eigenvalue of the discrete recurrence h_t = lambda_bar h_{t-1} + ...: f(w), or exp(dt f(w)) in continuous time."""
    if time == "discrete":
        return f(name, time, w, xp, a=a, b=b)
    if dt is None:
        raise ValueError("dt is None; continuous time needs the step size")
    return saturated_exp(-dt * rate(name, w, xp, a=a, b=b), xp)


def derivative(name: str, time: str, w: Array, xp: Any, *, a: float = 1.0, b: float = 0.5) -> Array:
    """f'(w). At a kink: 0 for relu; the inner slope for clip, so that an eigenvalue set on the bound can leave it."""
    if name == "direct":
        return xp.ones_like(w)
    if name == "best":
        d = a * w * w + b
        return 2 * a * w / d / d  # divided twice: d * d overflows before the quotient does
    zero = xp.zeros_like(w)
    if time == "discrete":
        match name:
            case "clip":
                return xp.where(xp.abs(w) <= 1.0 - CLIP_MARGIN, zero + 1, zero)
            case "softplus":
                return -_sigmoid(w, xp) * _sigmoid(-w, xp)
            case "sigmoid":
                return _sigmoid(w, xp) * _sigmoid(-w, xp)
            case "tanh":
                return 4 * _sigmoid(2 * w, xp) * _sigmoid(-2 * w, xp)
            case "exp":
                return -xp.exp(w - saturated_exp(w, xp))
            case "relu" | "heavytail":
                return xp.exp(-rate(name, w, xp)) * derivative(name, "continuous", w, xp)
        raise ValueError(f"reparameterization is {name!r}; allowed are {sorted(FORMS)}")
    match name:
        case "relu":
            return -xp.where(w > 0, zero + 1, zero)
        case "clip":
            return xp.where(w <= -CLIP_MARGIN, zero + 1, zero)
        case "exp":
            return -saturated_exp(w, xp)
        case "softplus":
            return -_sigmoid(w, xp)
        case "heavytail":
            r = 1 / (1 - xp.clip(w, max=0))
            return -r * r
        case "sigmoid":
            return -_sigmoid(w, xp) * _sigmoid(-w, xp)
    raise ValueError(f"{name!r} has no {time} form; possible are {FORMS.get(name, sorted(FORMS))}")


def gradient_scale(name: str, time: str, w: Array, xp: Any, *, a: float = 1.0, b: float = 0.5) -> Array:
    """G_f(w): bound of |dLoss/dw| up to a constant (theorem 3.6), simplified by hand so that no quotient of underflows is taken.

    Continuous |f'(w)| / f(w)^2; discrete |f'(w)| / (1 - |f(w)|)^2: the sum behind equation 16, which is right for lambda < 0
    too. Where the bound is infinite (w on the stability boundary) it is inf; 0 where f is flat.
    """
    if name == "best":
        v = 2 * a * xp.abs(w)
        if time == "continuous":
            return v
        t = 2 * a * w * w + (2 * b - 1)  # below 1 where lambda < 0: there 1 - |lambda| = t / (a w^2 + b)
        safe = xp.where(t > 0, t, xp.ones_like(w))
        return xp.where(t >= 1, v, xp.where(t > 0, v / safe / safe, xp.full_like(w, math.inf)))
    zero = xp.zeros_like(w)
    if name in ("direct", "clip"):
        distance = -w if time == "continuous" else 1 - xp.abs(w)
        return xp.where(derivative(name, time, w, xp) > 0, 1 / distance / distance, zero)
    if time == "continuous":
        match name:
            case "relu":
                v = xp.where(w > 0, w, zero + 1)
                return xp.where(w > 0, 1 / v / v, zero)
            case "exp" | "sigmoid":
                return saturated_exp(-w, xp)
            case "softplus":
                v = xp.clip(w, min=-20.0)  # below it G is e^-w to the last bit
                return xp.where(w < -20.0, saturated_exp(-w, xp), _sigmoid(v, xp) / _softplus(v, xp) / _softplus(v, xp))
            case "heavytail":
                v = 1 / (1 + xp.clip(w, min=0))
                return v * v
        raise ValueError(f"{name!r} has no {time} form; possible are {FORMS.get(name, sorted(FORMS))}")
    match name:
        case "softplus":
            return saturated_exp(-w, xp)
        case "sigmoid":
            return saturated_exp(w, xp)
        case "tanh":
            return saturated_exp(2 * xp.abs(w), xp)
        case "relu":
            v = xp.where(w > 0, w, zero + 1)
            return xp.where(w > 0, xp.exp(-v) / xp.expm1(-v) / xp.expm1(-v), zero)
        case "exp":
            v = xp.clip(w, min=-20.0)
            r = saturated_exp(v, xp)
            return xp.where(w < -20.0, saturated_exp(-w, xp), xp.exp(v - r) / xp.expm1(-r) / xp.expm1(-r))
        case "heavytail":
            r = _heavytail(w, xp)
            return xp.abs(derivative(name, time, w, xp)) / xp.expm1(-r) / xp.expm1(-r)
    raise ValueError(f"reparameterization is {name!r}; allowed are {sorted(FORMS)}")


def inverse(name: str, time: str, lambda_: Array, xp: Any, *, a: float = 1.0, b: float = 0.5) -> Array:
    """w with f(w) = lambda_; of two solutions the one with w >= 0. The caller has checked that lambda_ is reachable."""
    l = lambda_  # noqa: E741 - the mathematics' own letter
    if name == "direct" or (name == "clip"):
        return l
    if name == "best":
        r = -l if time == "continuous" else 1 - l
        return xp.sqrt(xp.clip((1 / r - b) / a, min=0))
    if time == "discrete":
        match name:
            case "softplus":
                return xp.log1p(-l) - xp.log(l)
            case "sigmoid":
                return xp.log(l) - xp.log1p(-l)
            case "tanh":
                return (xp.log1p(l) - xp.log1p(-l)) / 2
            case "relu" | "exp" | "heavytail":
                return inverse(name, "continuous", xp.log(l), xp)
        raise ValueError(f"reparameterization is {name!r}; allowed are {sorted(FORMS)}")
    match name:
        case "relu":
            return -l
        case "exp":
            return xp.log(-l)
        case "softplus":
            return -l + xp.log(-xp.expm1(l))
        case "heavytail":
            return xp.where(l <= -1, -l - 1, 1 + 1 / l)
        case "sigmoid":
            return xp.log(-l) - xp.log1p(l)
    raise ValueError(f"{name!r} has no {time} form; possible are {FORMS.get(name, sorted(FORMS))}")
