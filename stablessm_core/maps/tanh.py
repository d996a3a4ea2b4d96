"""tanh: the eigenvalue is tanh(w), in discrete time only (StableSSM, arXiv 2311.14495, table 5)."""

from __future__ import annotations

from stablessm_core.map import Array, Discrete, Interval, Map, by_time, saturated_exp, sigmoid


class TanhDiscrete(Discrete):
    text = "tanh(w)"

    @property
    def reachable(self) -> Interval:
        return Interval(-1.0, 1.0)

    def f(self, w: Array) -> Array:
        return self.xp.tanh(w)

    def complement(self, w: Array) -> Array:
        return 2 * sigmoid(-2 * w, self.xp)

    def distance(self, w: Array) -> Array:
        return 2 * sigmoid(-2 * self.xp.abs(w), self.xp)

    def derivative(self, w: Array) -> Array:
        return 4 * sigmoid(2 * w, self.xp) * sigmoid(-2 * w, self.xp)

    def gradient_scale(self, w: Array) -> Array:
        return saturated_exp(2 * self.xp.abs(w), self.xp)

    def inverse(self, lambda_: Array) -> Array:
        return (self.xp.log1p(lambda_) - self.xp.log1p(-lambda_)) / 2


MAP = Map("tanh", by_time(TanhDiscrete), guarded=True, stable_by="the map; the gradient still grows near the boundary", order=6)
