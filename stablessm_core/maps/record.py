"""What a map is: its formulas in continuous and in discrete time, and what is known about it beside them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from stablessm_core.maps.elementary import Array, saturated, saturated_exp


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


class Formulas(ABC):
    """lambda = f(w) in one kind of time, with all that follows from it; a and b are the constants of maps that have some.

    `xp` is the array namespace, `numpy` or `torch`: server and trainer use the same formulas. w (or lambda) has any shape and the
    dtype float32 or float64. No formula may overflow or be NaN for |w| <= 1e4, nor subtract nearly equal numbers near the
    boundary.
    """

    time: ClassVar[str]
    text: ClassVar[str]  # f(w) for people
    least_b: ClassVar[float] = 0.0  # smallest b that keeps the eigenvalues stable

    def __init__(self, xp: Any, a: float = 1.0, b: float = 0.5) -> None:
        self.xp, self.a, self.b = xp, a, b

    @property
    @abstractmethod
    def reachable(self) -> Interval:
        """Eigenvalues lambda that f gives for some finite w."""

    @abstractmethod
    def f(self, w: Array) -> Array:
        """lambda = f(w)."""

    @abstractmethod
    def derivative(self, w: Array) -> Array:
        """f'(w). At a kink the slope that lets an eigenvalue leave it, or 0."""

    @abstractmethod
    def gradient_scale(self, w: Array) -> Array:
        """G_f(w): bound of |dLoss/dw| up to a constant (theorem 3.6), simplified by hand: no quotient of underflows is taken.

        Continuous |f'(w)| / f(w)^2; discrete |f'(w)| / (1 - |f(w)|)^2: the sum behind equation 16, which is right for
        lambda < 0 too. Where the bound is infinite (w on the stability boundary) it is inf; 0 where f is flat.
        """

    @abstractmethod
    def inverse(self, lambda_: Array) -> Array:
        """w with f(w) = lambda_; of two solutions the one with w >= 0. The caller has checked that lambda_ is reachable."""

    @property
    def ratio_at_zero(self) -> float:
        """Limit of G_f(w)/|w| at w = 0."""
        return math.inf

    @abstractmethod
    def lambda_bar(self, w: Array, dt: Array | None = None) -> Array:
        """Eigenvalue of the discrete recurrence h_t = lambda_bar h_{t-1} + ...: f(w), or exp(dt f(w)) in continuous time."""

    @abstractmethod
    def boundary_distance(self, w: Array, dt: Array | None = None) -> Array:
        """1 - |lambda_bar|: distance to the stability boundary, negative when unstable. `dt` broadcasts to w."""


class Continuous(Formulas):
    """lambda = -rate(w) in continuous time; one step of size dt multiplies by exp(dt lambda) (zero-order hold)."""

    time = "continuous"

    @abstractmethod
    def rate(self, w: Array) -> Array:
        """-f(w): the decay rate of the mode, positive when stable."""

    @property
    def reachable(self) -> Interval:
        return Interval(-math.inf, 0.0)

    def f(self, w: Array) -> Array:
        return -self.rate(w)

    def lambda_bar(self, w: Array, dt: Array | None = None) -> Array:
        return saturated_exp(self._exponent(w, dt), self.xp)

    def boundary_distance(self, w: Array, dt: Array | None = None) -> Array:
        return -self.xp.expm1(saturated(self._exponent(w, dt), self.xp))

    def _exponent(self, w: Array, dt: Array | None) -> Array:
        if dt is None:
            raise ValueError("dt is None; continuous time needs the step size")
        return -dt * self.rate(w)


class Discrete(Formulas):
    """lambda = f(w) is the eigenvalue of the discrete recurrence itself."""

    time = "discrete"

    @abstractmethod
    def complement(self, w: Array) -> Array:
        """1 - f(w), without cancellation where f(w) is near 1."""

    @property
    def reachable(self) -> Interval:
        return Interval(0.0, 1.0)

    def distance(self, w: Array) -> Array:
        """1 - |f(w)|; to be overridden where f(w) can be negative."""
        return self.complement(w)

    def lambda_bar(self, w: Array, dt: Array | None = None) -> Array:  # noqa: ARG002 - a step has no size here
        return self.f(w)

    def boundary_distance(self, w: Array, dt: Array | None = None) -> Array:  # noqa: ARG002
        return self.distance(w)


class DiscreteFromRate(Discrete):
    """lambda = exp(-rate(w)) with the rate of the same map in continuous time: its discrete form, where it has no other."""

    of: ClassVar[type[Continuous]]

    def __init__(self, xp: Any, a: float = 1.0, b: float = 0.5) -> None:
        super().__init__(xp, a, b)
        self.continuous = self.of(xp, a, b)

    def f(self, w: Array) -> Array:
        return self.xp.exp(-self.continuous.rate(w))

    def complement(self, w: Array) -> Array:
        return -self.xp.expm1(-self.continuous.rate(w))

    def derivative(self, w: Array) -> Array:
        return self.f(w) * self.continuous.derivative(w)

    def inverse(self, lambda_: Array) -> Array:
        return self.continuous.inverse(self.xp.log(lambda_))


@dataclass(frozen=True)
class Map:
    """One map. `forms`: its formulas by kind of time, where it has them.

    guarded: f nears the stability boundary ever more slowly and no weight reaches it, but where float32 rounds to 1; a cut such
    as relu's or clip's is no guard.
    stable_by: what keeps it stable, for people; "the map" or "nothing" without.
    """

    name: str
    forms: Mapping[str, type[Formulas]]
    guarded: bool
    stable_by: str = ""


def in_times(*forms: type[Formulas]) -> dict[str, type[Formulas]]:
    """The forms of a map by their time."""
    return {form.time: form for form in forms}
