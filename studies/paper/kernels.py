"""Figure 1 without sampling: linear models trained on the exact kernel, and the error of their perturbed copies.

With white input, the mean squared error of y = sum c_j h_j, h_t = λ_j h_{t-1} + x_t, is a weighted sum over the kernel:
E = sum_t (1 - t / T) (k(t) - ρ(t))², k(t) = sum_j c_j λ_j^t. So no input is drawn, and float64 leaves no noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablessm_core.maps import formulas
from stablessm_core.theory.perturbation import BETAS, Mode, kernel_error, perturbation_error

Array = NDArray[np.float64]
LENGTH = 100
TIME = np.arange(LENGTH, dtype=np.float64)
WEIGHT = 1 - TIME / LENGTH
TARGETS = {"polynomial": (1 + TIME) ** -1.1, "exponential": 0.9**TIME}
WIDTHS = (8, 16, 32)
LR = 0.01


@dataclass(frozen=True)
class Trained:
    """Models of one width, one per seed. w, c: (seeds, width). error: (seeds,), the error without perturbation."""

    map: str
    w: Array
    c: Array
    error: Array

    def eigenvalues(self) -> Array:
        """λ = f(w), (seeds, width)."""
        found: Array = formulas(self.map, "discrete", np).f(self.w)
        return found


def error_of(map_: str, w: Array, c: Array, target: str) -> Array:
    """E for weights (..., width); infinite where a power overflows float64."""
    return kernel_error(map_, w, c, TARGETS[target])


def train(map_: str, target: str, width: int, seeds: int, steps: int, below: Array | None = None, rounds: int = 12) -> Trained:
    """Train one model per seed with Adam and a cosine, keeping the best step; eigenvalues start the same for every map.

    below: the errors that each seed must undercut. Training continues for up to `rounds` rounds of `steps` steps until it does.
    """
    of, target_ = formulas(map_, "discrete", np), TARGETS[target]
    starts = [np.random.default_rng((width, seed)) for seed in range(seeds)]
    w = of.inverse(np.stack([0.5 + 0.49 * g.random(width) for g in starts]))
    c = np.stack([g.standard_normal(width) / width for g in starts])
    best = Trained(map_, w.copy(), c.copy(), error_of(map_, w, c, target))
    for _ in range(rounds):
        moments = [np.zeros_like(w) for _ in range(4)]
        for step in range(1, steps + 1):
            w, c = _step(of, w, c, target_, moments, step, LR * (1 + np.cos(np.pi * (step - 1) / steps)) / 2)
            error = error_of(map_, w, c, target)
            better = error < best.error
            if better.any():
                keep = better[:, None]
                best = Trained(map_, np.where(keep, w, best.w), np.where(keep, c, best.c), np.where(better, error, best.error))
        if below is None or (best.error < below).all():
            break
        w, c = best.w.copy(), best.c.copy()
    return best


def _step(of: Any, w: Array, c: Array, target: Array, moments: list[Array], step: int, lr: float) -> tuple[Array, Array]:
    with np.errstate(all="ignore"):
        lambda_ = of.f(w)
        powers = lambda_[..., None] ** TIME
        residual = 2 * WEIGHT * (np.einsum("sj,sjt->st", c, powers) - target)
        by_c = np.einsum("st,sjt->sj", residual, powers)
        slopes = np.concatenate([np.zeros_like(powers[..., :1]), powers[..., :-1] * TIME[1:]], axis=-1)
        by_w = c * np.einsum("st,sjt->sj", residual, slopes) * of.derivative(w)
    moved = []
    for i, (value, gradient) in enumerate(((w, by_w), (c, by_c))):
        gradient = np.nan_to_num(gradient, posinf=0.0, neginf=0.0)
        first, second = moments[2 * i], moments[2 * i + 1]
        first += 0.1 * (gradient - first)
        second += 0.001 * (gradient**2 - second)
        moved.append(value - lr * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8))
    return moved[0], moved[1]


def perturbed_errors(model: Trained, target: str, mode: Mode) -> Array:
    """The largest error over perturbations of each size, (sizes, seeds), never falling with the size (`perturbation_error`)."""
    return perturbation_error(model.map, model.w, model.c, TARGETS[target], mode=mode).error


def crossing(narrow: Array, wide: Array) -> Array:
    """The smallest perturbation at which the wider model is worse, (seeds,); twice the largest size if it never is.

    NaN for a seed whose wider model is already worse without perturbation: its curves have no crossing that means anything.
    """
    worse = wide > narrow
    first = np.argmax(worse, axis=0)
    found = np.where(worse.any(axis=0), np.asarray(BETAS)[first], 2 * BETAS[-1])
    return np.where(worse[0], np.nan, found)
