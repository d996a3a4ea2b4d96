"""best: the rate is 1/(a w^2 + b). The gradient over weight does not grow near the boundary (StableSSM, section 3.4).

In continuous and in discrete time, f' = 2 a w / (a w^2 + b)^2. In discrete time lambda = 1 - rate, which is negative where
a w^2 + b < 1.
"""

from __future__ import annotations

import math

from stablessm_core.map import Array, Continuous, Discrete, Formulas, Interval, Map, by_time


class _Best(Formulas):
    def _rate(self, w: Array) -> Array:
        return 1 / (self.a * w * w + self.b)

    def derivative(self, w: Array) -> Array:
        d = self.a * w * w + self.b
        return 2 * self.a * w / d / d  # divide twice, because d * d would overflow first

    @property
    def ratio_at_zero(self) -> float:
        return 2 * self.a  # G_f(w) is 2 a |w| for every w

    def _weight(self, rate: Array) -> Array:
        return self.xp.sqrt(self.xp.clip((1 / rate - self.b) / self.a, 0, None))


class BestContinuous(_Best, Continuous):
    text = "-1/(a w^2 + b)"

    @property
    def reachable(self) -> Interval:
        return Interval(-1.0 / self.b, 0.0, closed_low=True)

    def rate(self, w: Array) -> Array:
        return self._rate(w)

    def gradient_scale(self, w: Array) -> Array:
        return 2 * self.a * self.xp.abs(w)

    def inverse(self, lambda_: Array) -> Array:
        return self._weight(-lambda_)


class BestDiscrete(_Best, Discrete):
    text = "1 - 1/(a w^2 + b)"
    least_b = 0.5

    @property
    def ratio_at_zero(self) -> float:
        t = 2 * self.b - 1  # with b = 0.5, w = 0 gives lambda = -1, which is on the boundary
        return 2 * self.a if t >= 1 else 2 * self.a / t / t if t > 0 else math.inf

    @property
    def reachable(self) -> Interval:
        return Interval(1.0 - 1.0 / self.b, 1.0, closed_low=True)

    def f(self, w: Array) -> Array:
        return 1 - self._rate(w)

    def complement(self, w: Array) -> Array:
        return self._rate(w)

    def distance(self, w: Array) -> Array:
        a, b = self.a, self.b
        d = a * w * w + b
        # if d < 1, lambda is negative, and 2 - 1/d would cancel near lambda = -1
        return self.xp.where(d >= 1, 1 / d, (2 * a * w * w + (2 * b - 1)) / d)

    def gradient_scale(self, w: Array) -> Array:
        xp, a, b = self.xp, self.a, self.b
        v = 2 * a * xp.abs(w)
        t = 2 * a * w * w + (2 * b - 1)  # if t < 1, lambda is negative and 1 - |lambda| = t / (a w^2 + b)
        safe = xp.where(t > 0, t, xp.ones_like(w))
        return xp.where(t >= 1, v, xp.where(t > 0, v / safe / safe, xp.full_like(w, math.inf)))

    def inverse(self, lambda_: Array) -> Array:
        return self._weight(1 - lambda_)


MAP = Map(
    "best",
    by_time(BestContinuous, BestDiscrete),
    guarded=True,
    stable_by="the map, with G_f/|w| = 2a everywhere (discrete: where λ ≥ 0)",
    order=7,
)
