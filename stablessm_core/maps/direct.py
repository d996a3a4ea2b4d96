"""direct: the weight is the eigenvalue. What training without a map does; nothing keeps it stable.

Its gradient can grow up to 1/(1-|lambda|)^2. A sequence has an end, so there it saturates near length^2/2, boundary or not.
"""

from __future__ import annotations

import math

from stablessm_core.maps.elementary import Array
from stablessm_core.maps.record import Continuous, Discrete, Interval, Map, in_times

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


MAP = Map("direct", in_times(DirectContinuous, DirectDiscrete), guarded=False)
