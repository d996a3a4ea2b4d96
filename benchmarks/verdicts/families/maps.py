"""Plug-in maps of development families."""

from __future__ import annotations

from stablessm_core.map import Array, Discrete, Interval, Map, by_time, sigmoid


class BeyondOneDiscrete(Discrete):
    """1.2 times the logistic function: it reaches 1.2."""

    text = "1.2/(1 + e^-w)"

    @property
    def reachable(self) -> Interval:
        return Interval(0.0, 1.2)

    def f(self, w: Array) -> Array:
        return 1.2 * sigmoid(w, self.xp)

    def complement(self, w: Array) -> Array:
        return 1 - self.f(w)

    def derivative(self, w: Array) -> Array:
        return 1.2 * sigmoid(w, self.xp) * sigmoid(-w, self.xp)

    def gradient_scale(self, w: Array) -> Array:
        return self.xp.abs(self.derivative(w)) / self.complement(w) ** 2

    def inverse(self, lambda_: Array) -> Array:
        return self.xp.log(lambda_ / (1.2 - lambda_))


planted_map_a = Map("planted_map_a", by_time(BeyondOneDiscrete), guarded=False)
