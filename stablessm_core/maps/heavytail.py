"""heavytail: the rate is 1 + w for w >= 0 and 1/(1 - w) for w < 0 (the heavy-tail map of Mamba-3)."""

from __future__ import annotations

from stablessm_core.map import Array, Continuous, DiscreteFromRate, Map, by_time


class HeavytailContinuous(Continuous):
    text = "-(1 + w), or -1/(1 - w) for w < 0"

    def rate(self, w: Array) -> Array:
        # the clip keeps the unused branch of `where` finite
        return self.xp.where(w >= 0, 1 + w, 1 / (1 - self.xp.clip(w, None, 0)))

    def derivative(self, w: Array) -> Array:
        r = 1 / (1 - self.xp.clip(w, None, 0))
        return -r * r

    def gradient_scale(self, w: Array) -> Array:
        v = 1 / (1 + self.xp.clip(w, 0, None))
        return v * v

    def inverse(self, lambda_: Array) -> Array:
        return self.xp.where(lambda_ <= -1, -lambda_ - 1, 1 + 1 / lambda_)


class HeavytailDiscrete(DiscreteFromRate):
    text = "exp(-(1 + w)), or exp(-1/(1 - w)) for w < 0"
    continuous_form = HeavytailContinuous

    def gradient_scale(self, w: Array) -> Array:
        r = self.continuous.rate(w)
        return self.xp.abs(self.derivative(w)) / self.xp.expm1(-r) / self.xp.expm1(-r)


MAP = Map(
    "heavytail",
    by_time(HeavytailContinuous, HeavytailDiscrete),
    guarded=True,
    stable_by="the map, with a slow approach to the boundary",
    order=8,
)
