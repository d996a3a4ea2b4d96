"""relu: the rate is max(w, 0) (StableSSM, arXiv 2311.14495, table 5). At w <= 0 the eigenvalue is on the boundary."""

from __future__ import annotations

import math

from stablessm_core.map import Array, Continuous, DiscreteFromRate, Interval, Map, by_time


class ReluContinuous(Continuous):
    text = "-max(w, 0)"

    @property
    def reachable(self) -> Interval:
        return Interval(-math.inf, 0.0, closed_high=True)

    def rate(self, w: Array) -> Array:
        return self.xp.clip(w, 0, None)

    def derivative(self, w: Array) -> Array:
        zero = self.xp.zeros_like(w)
        return -self.xp.where(w > 0, zero + 1, zero)

    def gradient_scale(self, w: Array) -> Array:
        zero = self.xp.zeros_like(w)
        v = self.xp.where(w > 0, w, zero + 1)
        return self.xp.where(w > 0, 1 / v / v, zero)

    def inverse(self, lambda_: Array) -> Array:
        return -lambda_


class ReluDiscrete(DiscreteFromRate):
    text = "exp(-max(w, 0))"
    continuous_form = ReluContinuous

    @property
    def reachable(self) -> Interval:
        return Interval(0.0, 1.0, closed_high=True)

    def gradient_scale(self, w: Array) -> Array:
        xp, zero = self.xp, self.xp.zeros_like(w)
        v = xp.where(w > 0, w, zero + 1)
        return xp.where(w > 0, xp.exp(-v) / xp.expm1(-v) / xp.expm1(-v), zero)


MAP = Map(
    "relu", by_time(ReluContinuous, ReluDiscrete), guarded=False, stable_by="may sit on the boundary; no gradient there", order=2
)
