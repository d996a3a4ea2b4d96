"""The memory function of a diagonal system, and the memory function of given eigenvalues that is nearest to a target. Uses
numpy, not torch."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
RIDGE = 1e-6


def memory_function(lambda_bar: ArrayLike, input_weight: ArrayLike, output_weight: ArrayLike, length: int) -> Array:
    """M(t) = |sum_i c_i b_i lambda_bar_i^t| for t = 0..length-1, (length,) float64.

    This is the memory function (StableSSM, definition 2.1) of h_t = lambda_bar h_{t-1} + b x_t, y = c h. It measures how much
    an input at step 0 still changes the output at step t. lambda_bar, input_weight b, output_weight c: (d_state,).
    """
    modes = np.asarray(lambda_bar, dtype=np.float64)
    b, c = np.asarray(input_weight, dtype=np.float64), np.asarray(output_weight, dtype=np.float64)
    if modes.ndim != 1 or not modes.shape == b.shape == c.shape:
        raise ValueError(
            f"lambda_bar, input and output weight are {modes.shape}, {b.shape}, {c.shape}; need one shape (d_state,)"
        )
    weight = b * c
    total = np.empty(length)
    power = np.ones_like(modes)
    with np.errstate(over="ignore", invalid="ignore"):  # unstable modes overflow here, as they do in the model
        for t in range(length):
            total[t] = power @ weight
            power *= modes
    return np.abs(total)


def nearest_memory(lambda_bar: ArrayLike, memory: ArrayLike, steps: ArrayLike) -> Array:
    """The memory function of the form sum_i g_i lambda_bar_i^t that is nearest to `memory` at the steps t; (points,).

    The weights g minimise the mean squared relative error plus RIDGE |g|^2. Without the second term the best weights would be
    huge and cancel each other; training does not find such weights, and float32 cannot represent them. memory, steps:
    (points,); memory must not contain 0. lambda_bar: (d_state,); eigenvalues outside the unit circle are ignored.
    """
    wanted, t = np.asarray(memory, dtype=np.float64), np.asarray(steps, dtype=np.float64)
    modes = np.asarray(lambda_bar, dtype=np.float64)
    modes = modes[np.abs(modes) <= 1]
    with np.errstate(under="ignore"):
        powers = np.abs(modes)[None, :] ** t[:, None] * np.where((modes < 0) & (t % 2 == 1)[:, None], -1.0, 1.0)
    rows = powers / wanted[:, None] / math.sqrt(max(len(wanted), 1))
    ridge = math.sqrt(RIDGE) * np.eye(len(modes))
    target = np.concatenate([np.full(len(wanted), 1 / math.sqrt(max(len(wanted), 1))), np.zeros(len(modes))])
    g, *_ = np.linalg.lstsq(np.concatenate([rows, ridge]), target, rcond=None)
    found: Array = powers @ g
    return found


def polynomial_memory(steps: ArrayLike, power: float = 1.1) -> Array:
    """(t + 1)^-power at the steps t: the memory function that the task polynomial_memory needs. No finite sum of exponentials
    equals this function."""
    memory: Array = (1.0 + np.asarray(steps, dtype=np.float64)) ** -power
    return memory
