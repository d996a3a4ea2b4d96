"""direct: the weight is the eigenvalue, as in training without a map. Nothing keeps the eigenvalue stable.

The gradient can grow up to 1/(1-|lambda|)^2. Because sequences are finite, the gradient saturates near length^2/2.
"""

from __future__ import annotations

import math

from stablessm_core.map import Array, Continuous, Discrete, Interval, Map, by_time

EVERYWHERE = Interval(-math.inf, math.inf)


class DirectContinuous(Continuous):
    text = "w"

    @property
    def reachable(self) -> Interval:
        return EVERYWHERE

    def rate(self, w: Array) -> Array:
        return -w

    def derivative(self, w: Array) -> Array:
        return self.xp.ones_like(w)

    def gradient_scale(self, w: Array) -> Array:
        return 1 / -w / -w

    def inverse(self, lambda_: Array) -> Array:
        return lambda_


class DirectDiscrete(Discrete):
    text = "w"

    @property
    def reachable(self) -> Interval:
        return EVERYWHERE

    def f(self, w: Array) -> Array:
        return w

    def complement(self, w: Array) -> Array:
        return 1 - w

    def distance(self, w: Array) -> Array:
        return 1 - self.xp.abs(w)

    def derivative(self, w: Array) -> Array:
        return self.xp.ones_like(w)

    def gradient_scale(self, w: Array) -> Array:
        distance = self.distance(w)
        return 1 / distance / distance

    def inverse(self, lambda_: Array) -> Array:
        return lambda_


MAP = Map("direct", by_time(DirectContinuous, DirectDiscrete), guarded=False, order=1)
