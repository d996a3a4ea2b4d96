"""clip: the weight is the eigenvalue, cut off 1e-4 inside the boundary (S5's Re lambda <= -1e-4), which it never reaches.

Its slope on the bound is the inner one, so that an eigenvalue set on the bound can leave it.
"""

from __future__ import annotations

import math

from stablessm_core.maps.elementary import Array
from stablessm_core.maps.record import Continuous, Discrete, Interval, Map, in_times

MARGIN = 1e-4


class ClipContinuous(Continuous):
    text = "min(w, -1e-4)"

    @property
    def reachable(self) -> Interval:
        return Interval(-math.inf, -MARGIN, closed_high=True)

    def rate(self, w: Array) -> Array:
        return self.xp.clip(-w, min=MARGIN)

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


MAP = Map("clip", in_times(ClipContinuous, ClipDiscrete), guarded=False, stable_by="the clip; no gradient beyond it")
