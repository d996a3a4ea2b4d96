"""softplus: the rate is ln(1 + e^w) (StableSSM, arXiv 2311.14495, table 5).

In discrete time the eigenvalue is sigmoid(-w). RG-LRU also uses this map.
"""

from __future__ import annotations

from stablessm_core.map import Array, Continuous, Discrete, Map, by_time, saturated_exp, sigmoid, softplus


class SoftplusContinuous(Continuous):
    text = "-ln(1 + e^w)"

    def rate(self, w: Array) -> Array:
        return softplus(w, self.xp)

    def derivative(self, w: Array) -> Array:
        return -sigmoid(w, self.xp)

    def gradient_scale(self, w: Array) -> Array:
        xp = self.xp
        v = xp.clip(w, -20.0, None)  # for w below -20, G_f(w) equals e^-w to the last bit
        return xp.where(w < -20.0, saturated_exp(-w, xp), sigmoid(v, xp) / softplus(v, xp) / softplus(v, xp))

    def inverse(self, lambda_: Array) -> Array:
        return -lambda_ + self.xp.log(-self.xp.expm1(lambda_))


class SoftplusDiscrete(Discrete):
    text = "1/(1 + e^w)"

    def f(self, w: Array) -> Array:
        return sigmoid(-w, self.xp)

    def complement(self, w: Array) -> Array:
        return sigmoid(w, self.xp)

    def derivative(self, w: Array) -> Array:
        return -sigmoid(w, self.xp) * sigmoid(-w, self.xp)

    def gradient_scale(self, w: Array) -> Array:
        return saturated_exp(-w, self.xp)

    def inverse(self, lambda_: Array) -> Array:
        return self.xp.log1p(-lambda_) - self.xp.log(lambda_)


MAP = Map(
    "softplus",
    by_time(SoftplusContinuous, SoftplusDiscrete),
    guarded=True,
    stable_by="the map; the gradient still grows near the boundary",
    order=5,
)
