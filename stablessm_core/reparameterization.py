"""The trainable form of the maps lambda = f(w): torch in, torch out, with the analytic derivative in backward.

A recurrent eigenvalue is never trained itself; its weight w is, and f decides how a step in w moves the eigenvalue near the
stability boundary (StableSSM, arXiv 2311.14495, sections 3.2 to 3.4). Formulas and their sources are in `formulas`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stablessm_core import formulas


def get_reparameterization(name: str, *, time: str = "discrete", a: float = 1.0, b: float = 0.5) -> Reparameterization:
    """The map `name` in `time`; a and b are those of best, -1/(a w^2 + b) or 1 - 1/(a w^2 + b).

    Raises ValueError for a pair without such a form, listing the possible ones, and for a or b out of range: both in
    [1e-6, 1e6], and b >= 0.5 in discrete time, so that lambda >= -1.
    """
    if time not in formulas.FORMS.get(name, ()):
        possible = ", ".join(f"{n} ({t})" for n, forms in formulas.FORMS.items() for t in forms)
        raise ValueError(f"reparameterization is {name!r} in {time!r} time; possible are {possible}")
    for letter, value in (("a", a), ("b", b)):
        if not (math.isfinite(value) and 1e-6 <= value <= 1e6):
            raise ValueError(f"{letter} is {value}; allowed: 1e-6 to 1e6")
    if name == "best" and time == "discrete" and b < 0.5:
        raise ValueError(f"b is {b}; discrete 'best' needs b >= 0.5, so that lambda = 1 - 1/(a w^2 + b) >= -1")
    return Reparameterization(name, time, float(a), float(b))


def initial_eigenvalues(low: float, high: float, d_state: int, time: str) -> Tensor:
    """Ascending lambda, (d_state,) float64, from low to high with log(distance to the boundary) evenly spaced.

    The distance is 1 - lambda in discrete time, -lambda in continuous time. One eigenvalue: high, the longest memory.
    Raises ValueError unless low <= high lie inside the stable interval and d_state >= 1.
    """
    edge, floor = (1.0, -1.0) if time == "discrete" else (0.0, -math.inf)
    if not floor < low <= high < edge:
        raise ValueError(f"eigenvalue range is [{low}, {high}]; needs low <= high inside ({floor}, {edge}) in {time} time")
    if d_state < 1:
        raise ValueError(f"d_state is {d_state}; needs at least 1")
    start = math.log(edge - high) if d_state == 1 else math.log(edge - low)
    distance = torch.linspace(start, math.log(edge - high), d_state, dtype=torch.float64).exp()
    lambda_ = (edge - distance).clamp(low, high)
    lambda_[0], lambda_[-1] = low, high  # exactly: a map may reach no further; high last, for it is the one of d_state 1
    return lambda_


@dataclass(frozen=True)
class Reparameterization:
    """lambda = f(w). Called on w of any shape, float32 or float64, it is differentiable once with the exact f'(w).

    No value or derivative overflows or is NaN for |w| <= 1e4; exponentials saturate below the dtype's largest number.
    """

    name: str
    time: str
    a: float
    b: float

    def __call__(self, w: Tensor) -> Tensor:
        """f(w), same shape and dtype as w."""
        _check_dtype("w", w)
        out: Tensor = _Map.apply(w, self)  # type: ignore[no-untyped-call]
        return out

    @property
    def reachable(self) -> formulas.Interval:
        """Eigenvalues f can give for some finite w."""
        return formulas.reachable_interval(self.name, self.time, b=self.b)

    def inverse(self, lambda_: Tensor) -> Tensor:
        """w with f(w) = lambda_, of two solutions the one with w >= 0. Raises ValueError for an unreachable eigenvalue."""
        _check_dtype("lambda_", lambda_)
        reach = self.reachable
        for value in (lambda_.min().item(), lambda_.max().item()) if lambda_.numel() else ():
            if not reach.contains(value):
                raise ValueError(f"eigenvalue {value:g} is unreachable: {self.name!r} ({self.time}) reaches {reach} only")
        return self._apply(formulas.inverse, lambda_)

    @torch.no_grad()
    def derivative(self, w: Tensor) -> Tensor:
        """f'(w), same shape and dtype as w; carries no gradient."""
        _check_dtype("w", w)
        return self._apply(formulas.derivative, w)

    @torch.no_grad()
    def gradient_scale(self, w: Tensor) -> Tensor:
        """G_f(w) = |f'|/f^2 in continuous, |f'|/(1-|f|)^2 in discrete time (theorem 3.6); carries no gradient."""
        _check_dtype("w", w)
        return self._apply(formulas.gradient_scale, w)

    def lambda_bar(self, w: Tensor, dt: Tensor | None = None) -> Tensor:
        """Eigenvalue of h_t = lambda_bar h_{t-1} + ...: f(w) in discrete, exp(dt f(w)) in continuous time. Differentiable."""
        if self.time == "discrete":
            return self(w)
        if dt is None:
            raise ValueError("dt is None; continuous time needs the step size")
        return formulas.saturated_exp(dt * self(w), torch)  # type: ignore[no-any-return]

    @torch.no_grad()
    def boundary_distance(self, w: Tensor, dt: Tensor | None = None) -> Tensor:
        """1 - |lambda_bar| without cancellation near the boundary; negative is unstable. Carries no gradient."""
        _check_dtype("w", w)
        return self._apply(formulas.boundary_distance, w, dt=dt)

    def _apply(self, formula: Any, x: Tensor, **more: Any) -> Tensor:
        out: Tensor = formula(self.name, self.time, x, torch, a=self.a, b=self.b, **more)
        return out


class _Map(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, w: Tensor, map_: Reparameterization) -> Tensor:
        ctx.save_for_backward(w)
        ctx.map = map_
        return map_._apply(formulas.f, w)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (w,) = ctx.saved_tensors
        return grad * ctx.map.derivative(w), None


def _check_dtype(name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is {type(x).__name__}; needs a torch tensor")
    if x.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{name} is {x.dtype}; eigenvalues and their weights need float32 or float64")
