"""Plug-in maps of held-out families."""

from __future__ import annotations

from stablessm_core.map import Array, Continuous, Discrete, Interval, Map, by_time, sigmoid, softplus


class BendsOutDiscrete(Discrete):
    """The logistic function near 0; far from 0 it goes on to 1.5, which no probe near 0 shows."""

    text = "1/(1 + e^-w) + 0.5 s(2 (w - 6))"

    @property
    def reachable(self) -> Interval:
        return Interval(0.0, 1.5)

    def f(self, w: Array) -> Array:
        return sigmoid(w, self.xp) + 0.5 * sigmoid(2 * (w - 6), self.xp)

    def complement(self, w: Array) -> Array:
        return 1 - self.f(w)

    def derivative(self, w: Array) -> Array:
        far = sigmoid(2 * (w - 6), self.xp)
        return sigmoid(w, self.xp) * sigmoid(-w, self.xp) + far * (1 - far)

    def gradient_scale(self, w: Array) -> Array:
        return self.xp.abs(self.derivative(w)) / self.complement(w) ** 2

    def inverse(self, lambda_: Array) -> Array:
        w = self.xp.log(lambda_ / (1 - lambda_))
        for _ in range(6):
            w = w - (self.f(w) - lambda_) / self.derivative(w)
        return w


class RootDiscrete(Discrete):
    """A root whose argument becomes negative for weights above 3: f has no value there."""

    text = "1 - sqrt(9 - w^2)/12"

    @property
    def reachable(self) -> Interval:
        return Interval(0.75, 1.0)

    def f(self, w: Array) -> Array:
        return 1 - self.xp.sqrt(9 - w * w) / 12

    def complement(self, w: Array) -> Array:
        return self.xp.sqrt(9 - w * w) / 12

    def derivative(self, w: Array) -> Array:
        return w / self.xp.sqrt(9 - w * w) / 12

    def gradient_scale(self, w: Array) -> Array:
        return self.xp.abs(self.derivative(w)) / self.complement(w) ** 2

    def inverse(self, lambda_: Array) -> Array:
        return self.xp.sqrt(self.xp.clip(9 - (12 * (1 - lambda_)) ** 2, 0, None))


class TurnsPositiveContinuous(Continuous):
    """A rate that is softplus near 0 and falls below 0 for weights above 8: the mode then grows."""

    text = "-(ln(1 + e^-w) - 0.4 s(w - 8))"

    @property
    def reachable(self) -> Interval:
        return Interval(-float("inf"), 0.4)

    def rate(self, w: Array) -> Array:
        return softplus(-w, self.xp) - 0.4 * sigmoid(w - 8, self.xp)

    def derivative(self, w: Array) -> Array:
        far = sigmoid(w - 8, self.xp)
        return sigmoid(-w, self.xp) + 0.4 * far * (1 - far)

    def gradient_scale(self, w: Array) -> Array:
        return self.xp.abs(self.derivative(w)) / self.rate(w) ** 2

    def inverse(self, lambda_: Array) -> Array:
        w = -self.xp.log(self.xp.expm1(-lambda_))
        for _ in range(6):
            w = w - (-self.rate(w) - lambda_) / self.derivative(w)
        return w


planted_map_b = Map("planted_map_b", by_time(BendsOutDiscrete), guarded=False)
planted_map_c = Map("planted_map_c", by_time(RootDiscrete), guarded=False)
planted_map_d = Map("planted_map_d", by_time(TurnsPositiveContinuous), guarded=False)
