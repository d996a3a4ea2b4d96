"""The trainable maps lambda = f(w) for torch tensors, with the analytic derivative in the backward pass.

Training never changes a recurrent eigenvalue directly. It changes the weight w, and f determines how far a step in w moves the
eigenvalue near the stability boundary (StableSSM, arXiv 2311.14495, sections 3.2 to 3.4). The formulas and their sources are in
`maps`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stablessm_core.map import DiscreteFromRate, Formulas, Interval, saturated_exp
from stablessm_core.maps import formulas
from stablessm_core.numerics.differentiation import elementwise
from stablessm_core.telemetry.forms import Form


def get_reparameterization(name: str, *, time: str = "discrete", a: float = 1.0, b: float = 0.5) -> Reparameterization:
    """The map `name` in "discrete" or "continuous" time.

    a and b are the constants of the map `best`, which is -1/(a w^2 + b) in continuous time and 1 - 1/(a w^2 + b) in discrete
    time. Raises ValueError if the map does not exist in that time (the message lists the possible pairs), or if a or b is out
    of range: both must be in [1e-6, 1e6], and b >= 0.5 in discrete time, so that lambda >= -1.
    """
    return Reparameterization(name, time, float(a), float(b))


def initial_eigenvalues(low: float, high: float, d_state: int, time: str) -> Tensor:
    """Eigenvalues from low to high, (d_state,) float64, in ascending order, with evenly spaced log(distance to the boundary).

    The distance is 1 - lambda in discrete time and -lambda in continuous time. If d_state is 1, the eigenvalue is `high`, which
    has the longest memory. Raises ValueError unless low <= high, both bounds are stable, and d_state >= 1.
    """
    edge, floor = (1.0, -1.0) if time == "discrete" else (0.0, -math.inf)
    if not floor < low <= high < edge:
        raise ValueError(f"eigenvalue range is [{low}, {high}]; needs low <= high inside ({floor}, {edge}) in {time} time")
    if d_state < 1:
        raise ValueError(f"d_state is {d_state}; needs at least 1")
    start = math.log(edge - high) if d_state == 1 else math.log(edge - low)
    distance = torch.linspace(start, math.log(edge - high), d_state, dtype=torch.float64).exp()
    lambda_ = (edge - distance).clamp(low, high)
    lambda_[0], lambda_[-1] = (
        low,
        high,
    )  # both ends are set exactly, because a map may not reach further; high is set last, so that d_state = 1 gives high
    return lambda_


@dataclass(frozen=True)
class Reparameterization:
    """lambda = f(w), for w of any shape, float32 or float64.

    f(w) is differentiable any number of times, with the exact f'(w), even under torch.func (vmap, grad, jvp, hessian). For
    |w| <= 1e4, no value or derivative overflows or is NaN. Exponentials saturate below the largest number of the dtype.
    """

    name: str
    time: str
    a: float
    b: float
    formulas: Formulas = field(init=False, repr=False, compare=False)
    in_numpy: Formulas = field(init=False, repr=False, compare=False)  # numpy is faster than torch for small arrays

    def __post_init__(self) -> None:
        object.__setattr__(self, "formulas", formulas(self.name, self.time, torch, a=self.a, b=self.b))
        object.__setattr__(self, "in_numpy", formulas(self.name, self.time, np, a=self.a, b=self.b))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle only the name and constants, because the formulas refer to a module, which cannot be copied."""
        return Reparameterization, (self.name, self.time, self.a, self.b)

    def __call__(self, w: Tensor) -> Tensor:
        """f(w), in the shape and dtype of w."""
        _check_dtype("w", w)
        return elementwise(w, self.formulas.f, self._slope)

    def _slope(self, w: Tensor, _lambda: Tensor) -> Tensor:
        slope: Tensor = self.formulas.derivative(w)
        return slope

    @property
    def form(self) -> Form:
        """The map as plain data. In continuous time, the form expects the layer's step sizes in the series "dt"."""
        return Form.of_map(self.name, self.time, a=self.a, b=self.b)

    @property
    def reachable(self) -> Interval:
        """The eigenvalues that f reaches for finite w."""
        return self.formulas.reachable

    def inverse(self, lambda_: Tensor) -> Tensor:
        """A weight w with f(w) = lambda_; if two weights qualify, w >= 0. Raises ValueError for an unreachable eigenvalue."""
        _check_dtype("lambda_", lambda_)
        reach = self.reachable
        for value in (lambda_.min().item(), lambda_.max().item()) if lambda_.numel() else ():
            if not reach.contains(value):
                raise ValueError(f"eigenvalue {value:g} is unreachable: {self.name!r} ({self.time}) reaches {reach} only")
        return self.formulas.inverse(lambda_)  # type: ignore[no-any-return]

    @torch.no_grad()
    def derivative(self, w: Tensor) -> Tensor:
        """f'(w), in the shape and dtype of w; carries no gradient."""
        _check_dtype("w", w)
        return self.formulas.derivative(w)  # type: ignore[no-any-return]

    @torch.no_grad()
    def gradient_scale(self, w: Tensor) -> Tensor:
        """G_f(w): |f'|/f^2 in continuous time, |f'|/(1-|f|)^2 in discrete time (theorem 3.6); carries no gradient."""
        _check_dtype("w", w)
        return self.formulas.gradient_scale(w)  # type: ignore[no-any-return]

    def lambda_bar(self, w: Tensor, dt: Tensor | None = None) -> Tensor:
        """The eigenvalue of h_t = lambda_bar h_{t-1} + ...: f(w) in discrete time, exp(dt f(w)) in continuous time.

        Differentiable.
        """
        if self.time == "discrete":
            return self(w)
        if dt is None:
            raise ValueError("dt is None; continuous time needs the step size")
        return saturated_exp(dt * self(w), torch)  # type: ignore[no-any-return]

    def rate(self, w: Tensor) -> Tensor | None:
        """-ln(lambda) of a discrete map lambda = e^-rate(w), which does not underflow where lambda does; None for another map.

        Differentiable.
        """
        if not isinstance(self.formulas, DiscreteFromRate):
            return None
        _check_dtype("w", w)
        continuous = self.formulas.continuous
        return -elementwise(w, continuous.f, lambda w, _: continuous.derivative(w))

    @torch.no_grad()
    def boundary_distance(self, w: Tensor, dt: Tensor | None = None) -> Tensor:
        """1 - |lambda_bar|, without cancellation near the boundary; negative if unstable. Carries no gradient."""
        _check_dtype("w", w)
        return self.formulas.boundary_distance(w, dt)  # type: ignore[no-any-return]


def _check_dtype(name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is {type(x).__name__}; needs a torch tensor")
    if x.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{name} is {x.dtype}; eigenvalues and their weights need float32 or float64")
