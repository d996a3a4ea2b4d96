"""sigmoid: the rate, or in discrete time the eigenvalue, is 1/(1 + e^-w). Gated linear attention uses the discrete form."""

from __future__ import annotations

from stablessm_core.map import Array, Continuous, Discrete, Interval, Map, by_time, saturated_exp, sigmoid


class SigmoidContinuous(Continuous):
    text = "-1/(1 + e^-w)"

    @property
    def reachable(self) -> Interval:
        return Interval(-1.0, 0.0)

    def rate(self, w: Array) -> Array:
        return sigmoid(w, self.xp)

    def derivative(self, w: Array) -> Array:
        return -sigmoid(w, self.xp) * sigmoid(-w, self.xp)

    def gradient_scale(self, w: Array) -> Array:
        return saturated_exp(-w, self.xp)

    def inverse(self, lambda_: Array) -> Array:
        return self.xp.log(-lambda_) - self.xp.log1p(lambda_)


class SigmoidDiscrete(Discrete):
    text = "1/(1 + e^-w)"

    def f(self, w: Array) -> Array:
        return sigmoid(w, self.xp)

    def complement(self, w: Array) -> Array:
        return sigmoid(-w, self.xp)

    def derivative(self, w: Array) -> Array:
        return sigmoid(w, self.xp) * sigmoid(-w, self.xp)

    def gradient_scale(self, w: Array) -> Array:
        return saturated_exp(w, self.xp)

    def inverse(self, lambda_: Array) -> Array:
        return self.xp.log(lambda_) - self.xp.log1p(-lambda_)


MAP = Map(
    "sigmoid",
    by_time(SigmoidContinuous, SigmoidDiscrete),
    guarded=True,
    stable_by="the map; the gradient still grows near the boundary",
    order=9,
)
