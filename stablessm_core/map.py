"""The classes that describe a map: its formulas in continuous and discrete time, and its properties. `maps` defines the maps.

Each formula is written once for both numpy and torch. `xp` is the array namespace, `numpy` or `torch`. Arrays may have any
shape; their dtype is float32 or float64.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

Array = Any  # numpy.ndarray or torch.Tensor; both namespaces provide every function that the formulas call


@dataclass(frozen=True)
class Map:
    """One map lambda = f(w) from a weight to an eigenvalue.

    forms: the formula classes, keyed by time: "continuous", "discrete" or both; see `by_time`.
    guarded: True if f approaches the stability boundary asymptotically, so that no weight reaches the boundary (unless float32
    rounds the eigenvalue to 1). A map with a hard cut-off, such as relu or clip, is not guarded.
    stable_by: a text that tells users what keeps the eigenvalues stable. Default: "the map" if guarded, otherwise "nothing".
    order: the map's position in lists and charts. Maps without a position come last, sorted by name.
    """

    name: str
    forms: Mapping[str, type[Formulas]]
    guarded: bool
    stable_by: str = ""
    order: float = math.inf


def by_time(*forms: type[Formulas]) -> dict[str, type[Formulas]]:
    """The formula classes keyed by their time, as the field `forms` of a Map needs them."""
    return {form.time: form for form in forms}


@dataclass(frozen=True)
class Interval:
    """An interval of real numbers with open or closed ends. Its string form is the usual notation, for example [-1, 1)."""

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
    """The formula lambda = f(w) in continuous or discrete time, and the functions derived from f. a and b: the map's constants.

    The server evaluates the formulas with numpy, and the trainer evaluates them with torch. For |w| <= 1e4, no formula
    overflows or gives NaN, and no formula subtracts nearly equal numbers near the boundary.
    """

    time: ClassVar[str]
    text: ClassVar[str]  # the formula of f(w), shown to users
    least_b: ClassVar[float] = 0.0  # the smallest b that keeps the eigenvalues stable

    def __init__(self, xp: Any, a: float = 1.0, b: float = 0.5) -> None:
        self.xp, self.a, self.b = xp, a, b

    @property
    @abstractmethod
    def reachable(self) -> Interval:
        """The interval of the eigenvalues lambda that f reaches for finite w."""

    @abstractmethod
    def f(self, w: Array) -> Array:
        """lambda = f(w)."""

    @abstractmethod
    def derivative(self, w: Array) -> Array:
        """f'(w). At a kink of f, the result is the slope on the side to which the eigenvalue can move, or 0."""

    @abstractmethod
    def gradient_scale(self, w: Array) -> Array:
        """G_f(w), which bounds |dLoss/dw| up to a constant factor (StableSSM, theorem 3.6). It is infinite on the stability
        boundary, and 0 where f is flat.

        Continuous time: |f'(w)| / f(w)^2. Discrete time: |f'(w)| / (1 - |f(w)|)^2, from the sum in the derivation of equation
        16; this formula also holds for lambda < 0. Subclasses simplify the quotient by hand, because its numerator and its
        denominator can both underflow.
        """

    @abstractmethod
    def inverse(self, lambda_: Array) -> Array:
        """A weight w with f(w) = lambda_; if two weights qualify, w >= 0. The caller checks that lambda_ is reachable."""

    @property
    def ratio_at_zero(self) -> float:
        """The limit of G_f(w)/|w| at w = 0."""
        return math.inf

    @abstractmethod
    def lambda_bar(self, w: Array, dt: Array | None = None) -> Array:
        """lambda_bar of the recurrence h_t = lambda_bar h_{t-1} + ...: f(w) in discrete, exp(dt f(w)) in continuous time."""

    @abstractmethod
    def boundary_distance(self, w: Array, dt: Array | None = None) -> Array:
        """1 - |lambda_bar|, the distance to the stability boundary; negative if unstable. `dt` is broadcast to w."""


class Continuous(Formulas):
    """lambda = -rate(w) in continuous time. One step of size dt multiplies the state by exp(dt lambda) (zero-order hold)."""

    time = "continuous"

    @abstractmethod
    def rate(self, w: Array) -> Array:
        """-f(w), the decay rate of the mode; positive if the mode is stable."""

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
    """lambda = f(w) is itself the eigenvalue of the discrete recurrence."""

    time = "discrete"

    @abstractmethod
    def complement(self, w: Array) -> Array:
        """1 - f(w), without cancellation where f(w) is near 1."""

    @property
    def reachable(self) -> Interval:
        return Interval(0.0, 1.0)

    def distance(self, w: Array) -> Array:
        """1 - |f(w)|. Override this method if f(w) can be negative."""
        return self.complement(w)

    def lambda_bar(self, w: Array, dt: Array | None = None) -> Array:  # noqa: ARG002 - discrete time has no step size
        return self.f(w)

    def boundary_distance(self, w: Array, dt: Array | None = None) -> Array:  # noqa: ARG002
        return self.distance(w)


class DiscreteFromRate(Discrete):
    """lambda = exp(-rate(w)): discrete-time formulas, derived from the map's formulas in continuous time."""

    continuous_form: ClassVar[type[Continuous]]

    def __init__(self, xp: Any, a: float = 1.0, b: float = 0.5) -> None:
        super().__init__(xp, a, b)
        self.continuous = self.continuous_form(xp, a, b)

    def f(self, w: Array) -> Array:
        return self.xp.exp(-self.continuous.rate(w))

    def complement(self, w: Array) -> Array:
        return -self.xp.expm1(-self.continuous.rate(w))

    def derivative(self, w: Array) -> Array:
        return self.f(w) * self.continuous.derivative(w)

    def inverse(self, lambda_: Array) -> Array:
        return self.continuous.inverse(self.xp.log(lambda_))


# Elementary functions without overflow or cancellation.

# The largest whole x for which e^x is finite in float32 and in float64. Exponentials are computed as if x were at most this
# large, so e^88 (1.7e38) and e^709 (8.2e307) are caps: the true number may be larger (`telemetry.boundary.is_capped`).
LARGEST_EXPONENT_32, LARGEST_EXPONENT_64 = 88.0, 709.0


def saturated(x: Array, xp: Any) -> Array:
    """x, limited to the largest integer n for which exp(n) is finite in x's dtype."""
    return xp.clip(x, None, LARGEST_EXPONENT_32 if x.dtype == xp.float32 else LARGEST_EXPONENT_64)


def saturated_exp(x: Array, xp: Any) -> Array:
    """e^x, with x limited so that the result does not overflow."""
    return xp.exp(saturated(x, xp))


def sigmoid(x: Array, xp: Any) -> Array:
    """1/(1 + e^-x)."""
    positive = x >= 0
    e = xp.exp(xp.where(positive, -x, x))  # e^-|x|, in a form that torch can also differentiate at 0
    return xp.where(positive, 1 / (1 + e), e / (1 + e))


def softplus(x: Array, xp: Any) -> Array:
    """ln(1 + e^x)."""
    return xp.clip(x, 0, None) + xp.log1p(xp.exp(xp.where(x >= 0, -x, x)))
