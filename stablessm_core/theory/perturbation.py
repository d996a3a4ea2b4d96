"""The perturbation error of a trained diagonal system: how large can its error become if its weights are moved by beta?

The system is y_t = sum_i c_i h_(i,t), h_(i,t) = lambda_i h_(i,t-1) + x_t, lambda_i = lambda_bar(f(w_i)), so that its kernel is
k(t) = sum_i c_i lambda_i^t. For white input of unit variance on `length` steps, its mean squared error against a target with the
kernel rho is E = sum_t (1 - t / length) (k(t) - rho(t))^2. No input is drawn. Uses numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stablessm_core.map import Formulas
from stablessm_core.maps import formulas

Array = NDArray[np.float64]
Mode = Literal["all_linf", "ball_l2", "recurrent_worst"]
MODES: tuple[Mode, ...] = ("all_linf", "ball_l2", "recurrent_worst")
BETAS = (0.0, *(1e-3 * 2 ** (i / 2) for i in range(21)))  # the sizes of the paper's figure 1, appendix F.1
DRAWS = 30  # of the authors' code
ASCENT_STEPS = 20
INTERIOR = 8  # sizes per weight that bound its largest effect


@dataclass(frozen=True)
class PerturbationError:
    """The perturbation error by size of the perturbation.

    beta: (sizes,). error: (sizes,) or (sizes, systems), never falling with beta, infinite where float64 overflows.
    at_most: an upper bound of the supremum, of the shape of error; None unless the mode is recurrent_worst. So the supremum lies
    between error and at_most.
    """

    mode: str
    beta: Array
    error: Array
    at_most: Array | None


def kernel_error(
    name: str,
    w: ArrayLike,
    c: ArrayLike,
    target: ArrayLike,
    *,
    time: str = "discrete",
    dt: float = 1.0,
    a: float = 1.0,
    b: float = 0.5,
) -> Array:
    """E of systems with the weights w, c (..., d_state), against the kernel target (length,); (...), infinite on overflow."""
    system = _System(formulas(name, time, np, a=a, b=b), np.asarray(target, np.float64), dt)
    return system.error(np.asarray(w, np.float64), np.asarray(c, np.float64))


def perturbation_error(
    name: str,
    w: ArrayLike,
    c: ArrayLike,
    target: ArrayLike,
    *,
    mode: Mode,
    betas: Sequence[float] = BETAS,
    time: str = "discrete",
    dt: float = 1.0,
    a: float = 1.0,
    b: float = 0.5,
    draws: int = DRAWS,
    seed: int = 0,
) -> PerturbationError:
    """The largest E of the system after a perturbation of size beta, for each beta, in one of three senses.

    all_linf: `draws` Gaussian directions of w and of c, each scaled to the maximum norm beta, as in the authors' code. A random
    sample, so E is a lower bound of the supremum, and a weak one if there are many weights.
    ball_l2: |dw|_2 <= beta and |dc|_2 <= beta, as in definition 2.4 (StableSSM), which takes the largest norm over tensors; the
    norm of Lambda is read as the Euclidean norm of its diagonal. The search starts from `draws` random directions and from each
    single recurrent weight, and climbs from the best start. E is a lower bound of the supremum.
    recurrent_worst: |dw|_2 <= beta, c stays. Each single weight is moved by beta to either side, and the search climbs from the
    worst of these. E is a lower bound; the triangle inequality over the weights gives the upper bound `at_most`.

    w, c: (d_state,) or (systems, d_state). target: rho, (length,). betas: at least 0, rising. dt: step size in continuous time.
    Equal seeds give equal results. Raises ValueError for other shapes, sizes, modes, maps and times.
    """
    weight, output, rho = (np.asarray(one, np.float64) for one in (w, c, target))
    beta = np.asarray(betas, np.float64)
    _check(weight, output, rho, beta, mode, draws)
    system = _System(formulas(name, time, np, a=a, b=b), rho, dt)
    many, c_many = np.atleast_2d(weight), np.atleast_2d(output)
    rng = np.random.default_rng(seed)
    directions = rng.standard_normal((2, draws, *many.shape))
    errors, bounds = [], []
    for size in beta:
        errors.append(_largest_error(system, many, c_many, float(size), mode, directions))
        if mode == "recurrent_worst":
            bounds.append(_upper_bound(system, many, c_many, float(size)))
    error = np.maximum.accumulate(np.stack(errors), axis=0)
    at_most = np.maximum.accumulate(np.stack(bounds), axis=0) if bounds else None
    if weight.ndim == 1:
        error, at_most = error[:, 0], None if at_most is None else at_most[:, 0]
    return PerturbationError(mode, beta, error, at_most)


class _System:
    """The target, and the kernel of a map's systems."""

    def __init__(self, map_: Formulas, target: Array, dt: float) -> None:
        self.map, self.target, self.dt = map_, target, dt
        self.t = np.arange(len(target), dtype=np.float64)
        self.share = 1 - self.t / len(target)

    def powers(self, w: Array) -> Array:
        """lambda^t, (..., d_state, length)."""
        with np.errstate(all="ignore"):
            powers: Array = self.eigenvalue(w)[..., None] ** self.t
        return powers

    def eigenvalue(self, w: Array) -> Array:
        if self.map.time == "discrete":
            lambda_: Array = self.map.f(w)
        else:
            lambda_ = np.exp(self.dt * self.map.f(w))
        return lambda_

    def residual(self, w: Array, c: Array) -> Array:
        with np.errstate(all="ignore"):
            residual: Array = np.einsum("...i,...it->...t", c, self.powers(w)) - self.target
        return residual

    def squared(self, residual: Array) -> Array:
        """E of a residual; infinite instead of NaN."""
        with np.errstate(all="ignore"):
            error = (residual**2) @ self.share
        return np.where(np.isnan(error), np.inf, error)

    def error(self, w: Array, c: Array) -> Array:
        return self.squared(self.residual(w, c))

    def gradients(self, w: Array, c: Array) -> tuple[Array, Array]:
        """dE/dw and dE/dc, (..., d_state)."""
        with np.errstate(all="ignore"):
            lambda_, powers = self.eigenvalue(w), self.powers(w)
            weighted = 2 * self.share * (np.einsum("...i,...it->...t", c, powers) - self.target)
            slope = self.map.derivative(w) * (self.dt * lambda_ if self.map.time == "continuous" else 1.0)
            rising = np.concatenate([np.zeros_like(powers[..., :1]), self.t[1:] * powers[..., :-1]], axis=-1)
            by_w = c * slope * np.einsum("...t,...it->...i", weighted, rising)
            return by_w, np.einsum("...t,...it->...i", weighted, powers)


def _largest_error(system: _System, w: Array, c: Array, beta: float, mode: Mode, directions: Array) -> Array:
    if beta == 0:
        return system.error(w, c)
    by_w, by_c = directions
    if mode == "all_linf":
        by_w = by_w / np.abs(by_w).max(axis=-1, keepdims=True)
        by_c = by_c / np.abs(by_c).max(axis=-1, keepdims=True)
        worst: Array = system.error(w + beta * by_w, c + beta * by_c).max(axis=0)
        return worst
    largest, dw = _single_weights(system, w, c, beta)
    dc = np.zeros_like(c)
    if mode == "ball_l2":
        by_w = beta * by_w / np.linalg.norm(by_w, axis=-1, keepdims=True)
        by_c = beta * by_c / np.linalg.norm(by_c, axis=-1, keepdims=True)
        drawn = system.error(w + by_w, c + by_c)
        best, rows = drawn.argmax(axis=0), np.arange(len(w))
        better = (drawn.max(axis=0) > largest)[:, None]
        dw, dc = np.where(better, by_w[best, rows], dw), np.where(better, by_c[best, rows], dc)
        largest = np.maximum(largest, drawn.max(axis=0))
    return _climb(system, w, c, dw, dc, beta, largest, moves_c=mode == "ball_l2")


def _single_weights(system: _System, w: Array, c: Array, beta: float) -> tuple[Array, Array]:
    """The largest error if one recurrent weight moves by beta, (systems,), and that move, (systems, d_state)."""
    residual, powers = system.residual(w, c), system.powers(w)
    errors = []
    for side in (beta, -beta):
        with np.errstate(all="ignore"):
            moved = residual[:, None] + c[..., None] * (system.powers(w + side) - powers)
        errors.append(system.squared(moved))
    found = np.concatenate(errors, axis=-1)  # (systems, 2 d_state)
    worst, rows, width = found.argmax(axis=-1), np.arange(len(w)), w.shape[-1]
    move = np.zeros_like(w)
    move[rows, worst % width] = np.where(worst < width, beta, -beta)
    return found[rows, worst], move


def _climb(
    system: _System, w: Array, c: Array, dw: Array, dc: Array, beta: float, largest: Array, *, moves_c: bool
) -> Array:  # fmt: skip
    """Climb on the sphere: replace the move by beta times the unit gradient, or by a mixture, wherever the error grows."""
    mix = np.ones((len(w), 1))
    for _ in range(ASCENT_STEPS):
        by_w, by_c = system.gradients(w + dw, c + dc)
        try_w = _on_sphere(dw, by_w, mix, beta)
        try_c = _on_sphere(dc, by_c, mix, beta) if moves_c else dc
        error = system.error(w + try_w, c + try_c)
        better = (error > largest)[:, None]
        dw, dc = np.where(better, try_w, dw), np.where(better, try_c, dc)
        largest = np.maximum(largest, error)
        mix = np.where(better, np.minimum(1.0, 2 * mix), mix / 2)
    return largest


def _on_sphere(move: Array, gradient: Array, mix: Array, beta: float) -> Array:
    with np.errstate(all="ignore"):
        gradient = gradient / np.abs(gradient).max(axis=-1, keepdims=True)
        unit = gradient / np.linalg.norm(gradient, axis=-1, keepdims=True)
        mixed = (1 - mix) * move + mix * beta * np.where(np.isfinite(unit), unit, 0.0)
        length = np.linalg.norm(mixed, axis=-1, keepdims=True)
    return np.where(length > 0, mixed * beta / np.where(length > 0, length, 1.0), move)


def _upper_bound(system: _System, w: Array, c: Array, beta: float) -> Array:
    """(sqrt(E_0) + sum_i |c_i| |lambda_i'^t - lambda_i^t|)^2, each weight at its own worst shift of at most beta.

    The norm is that of E. The worst shift of a weight is an end of [-beta, beta], or one of INTERIOR shifts in between, which
    matter only if the map turns back inside.
    """
    start, powers = np.sqrt(system.error(w, c)), system.powers(w)
    worst = np.zeros_like(w)
    for shift in beta * np.linspace(-1, 1, 2 * INTERIOR + 1):
        with np.errstate(all="ignore"):
            moved = np.sqrt(system.squared(system.powers(w + shift) - powers))
        worst = np.maximum(worst, moved)
    with np.errstate(all="ignore"):
        total = np.where(c == 0, 0.0, np.abs(c) * worst).sum(axis=-1)
        bound: Array = (start + total) ** 2
    return bound


def _check(w: Array, c: Array, target: Array, beta: Array, mode: str, draws: int) -> None:
    if w.ndim not in (1, 2) or w.shape != c.shape or not w.shape[-1]:
        raise ValueError(f"w and c are {w.shape} and {c.shape}; need one shape (d_state,) or (systems, d_state)")
    if target.ndim != 1 or not len(target):
        raise ValueError(f"target has the shape {target.shape}; need (length,)")
    if beta.ndim != 1 or not len(beta) or not (beta >= 0).all() or (np.diff(beta) <= 0).any():
        raise ValueError(f"betas are {beta.tolist()}; need numbers that are not negative, each larger than the one before")
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; allowed: {', '.join(MODES)}")
    if draws < 1:
        raise ValueError(f"draws is {draws}; need at least 1")
