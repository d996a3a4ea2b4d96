"""clip: the weight is the eigenvalue, clipped at a distance of 1e-4 from the boundary (S5: Re lambda <= -1e-4).

So the eigenvalue never reaches the boundary. At the clipping bound the derivative is 1, as on the inner side of the bound, so
that an eigenvalue on the bound can move away from it.
"""

from __future__ import annotations

import math

from stablessm_core.map import Array, Continuous, Discrete, Interval, Map, by_time

MARGIN = 1e-4


class ClipContinuous(Continuous):
    text = "min(w, -1e-4)"

    @property
    def reachable(self) -> Interval:
        return Interval(-math.inf, -MARGIN, closed_high=True)

    def rate(self, w: Array) -> Array:
        return self.xp.clip(-w, MARGIN, None)

    def derivative(self, w: Array) -> Array:
        zero = self.xp.zeros_like(w)
        return self.xp.where(w <= -MARGIN, zero + 1, zero)

    def gradient_scale(self, w: Array) -> Array:
        return self.xp.where(self.derivative(w) > 0, 1 / -w / -w, self.xp.zeros_like(w))

    def inverse(self, lambda_: Array) -> Array:
        return lambda_


class ClipDiscrete(Discrete):
    text = "w cut to [-0.9999, 0.9999]"

    @property
    def reachable(self) -> Interval:
        return Interval(MARGIN - 1.0, 1.0 - MARGIN, closed_low=True, closed_high=True)

    def f(self, w: Array) -> Array:
        return self.xp.clip(w, MARGIN - 1.0, 1.0 - MARGIN)

    def complement(self, w: Array) -> Array:
        return 1 - self.f(w)

    def distance(self, w: Array) -> Array:
        return 1 - self.xp.abs(self.f(w))

    def derivative(self, w: Array) -> Array:
        zero = self.xp.zeros_like(w)
        return self.xp.where(self.xp.abs(w) <= 1.0 - MARGIN, zero + 1, zero)

    def gradient_scale(self, w: Array) -> Array:
        distance = 1 - self.xp.abs(w)
        return self.xp.where(self.derivative(w) > 0, 1 / distance / distance, self.xp.zeros_like(w))

    def inverse(self, lambda_: Array) -> Array:
        return lambda_


MAP = Map("clip", by_time(ClipContinuous, ClipDiscrete), guarded=False, stable_by="the clip; no gradient beyond it", order=3)
