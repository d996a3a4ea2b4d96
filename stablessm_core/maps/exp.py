"""exp: the rate is e^w (StableSSM, arXiv 2311.14495, table 5). S4D and LRU also use this map."""

from __future__ import annotations

from stablessm_core.map import Array, Continuous, DiscreteFromRate, Map, by_time, saturated_exp


class ExpContinuous(Continuous):
    text = "-e^w"

    def rate(self, w: Array) -> Array:
        return saturated_exp(w, self.xp)

    def derivative(self, w: Array) -> Array:
        return -saturated_exp(w, self.xp)

    def gradient_scale(self, w: Array) -> Array:
        return saturated_exp(-w, self.xp)

    def inverse(self, lambda_: Array) -> Array:
        return self.xp.log(-lambda_)


class ExpDiscrete(DiscreteFromRate):
    text = "exp(-e^w)"
    continuous_form = ExpContinuous

    def derivative(self, w: Array) -> Array:
        return -self.xp.exp(w - saturated_exp(w, self.xp))

    def gradient_scale(self, w: Array) -> Array:
        xp = self.xp
        v = xp.clip(w, -20.0, None)  # for w below -20, G_f(w) equals e^-w to the last bit
        r = saturated_exp(v, xp)
        return xp.where(w < -20.0, saturated_exp(-w, xp), xp.exp(v - r) / xp.expm1(-r) / xp.expm1(-r))


MAP = Map(
    "exp",
    by_time(ExpContinuous, ExpDiscrete),
    guarded=True,
    stable_by="the map; the gradient still grows near the boundary",
    order=4,
)
