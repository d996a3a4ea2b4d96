"""The side of the stability boundary on which an eigenvalue is, the channel that decides whether a state overflows, and the
numbers that are caps. Does not import torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from stablessm_core.map import LARGEST_EXPONENT_32, LARGEST_EXPONENT_64
from stablessm_core.telemetry.forms import GATES, Form

Array = Any  # numpy.ndarray

Side = Literal["inside", "on", "outside", "unknown"]
LARGEST_32, LARGEST_64 = math.exp(LARGEST_EXPONENT_32), math.exp(LARGEST_EXPONENT_64)  # 1.65e38 and 8.22e307
ROUNDED = 1e-6  # two float32 exponentials of the same number differ by less than this factor


class Sides(NamedTuple):
    """How many eigenvalues are on each side of the boundary. unknown: those whose distance is NaN."""

    inside: int
    on: int
    outside: int
    unknown: int


def side_of_boundary(distance: float) -> Side:
    """The side of an eigenvalue with this distance 1 - |lambda_bar|.

    "inside": |lambda_bar| < 1, so the state decays. "on": |lambda_bar| is exactly 1, so the state neither decays nor grows.
    "outside": |lambda_bar| > 1, so the state grows along the sequence. "unknown": the distance is NaN.
    """
    if math.isnan(distance):
        return "unknown"
    return "inside" if distance > 0 else "outside" if distance < 0 else "on"


def count_sides(distance: Array) -> Sides:
    """The number of eigenvalues on each side, from their distances in any shape."""
    d = np.asarray(distance, np.float64)
    return Sides(*(int(mask.sum()) for mask in (d > 0, d == 0, d < 0, np.isnan(d))))


def is_capped(number: float) -> bool:
    """True if a computed |lambda_bar|, distance, step size or gate is a cap: the true number is at least as large.

    Exponentials are computed as if the exponent were at most 88 in float32 and 709 in float64 (`map.saturated`). So 1.65e38 and
    8.22e307 stand for everything larger. An infinite number is not a cap, but infinite.
    """
    size = abs(float(number))
    return math.isfinite(size) and (size >= LARGEST_64 * (1 - ROUNDED) or math.isclose(size, LARGEST_32, rel_tol=ROUNDED))


def overflow_distance(form: Form, recorded: Mapping[str, Array]) -> Array:
    """1 - |lambda_bar| of the channel whose state grows fastest, or decays most slowly: `overflow_budget` follows from it.

    If every channel of a layer has its own constant step size (`Form.channels`), this is the channel with the largest step size
    outside the boundary, and the one with the smallest step size inside. Otherwise it is the series "boundary_distance". For a
    gate that varies over batch and time, that is the distance at the mean gate, because a product over time grows with the mean
    of its logarithms; how far the batch's largest sequence is above the mean is not recorded, and `largest_overflow_distance`
    is a bound.
    recorded: the layer's `form.inputs`, arrays of one shape. The result has the same shape.
    """
    return form.derive("boundary_distance_closest" if form.channels else "boundary_distance", recorded)


def largest_overflow_distance(form: Form, recorded: Mapping[str, Array]) -> Array:
    """A lower bound of 1 - |lambda_bar| of every product over time: as if every gate were the one of the step that grows most.
    Equal to `overflow_distance` without a gate that varies over time."""
    return form.derive("boundary_distance_closest", recorded) if form.gate else overflow_distance(form, recorded)


def grow_steps(form: Form, recorded: Mapping[str, Array], factor: Array) -> Mapping[str, Array]:
    """The recorded values with every trained step size multiplied by `factor`. The gates of a layer that computes them from its
    input stay as they are, because how the next batch changes them is unknown."""
    kinds = GATES if form.channels else (form.dt,) if isinstance(form.dt, str) else ()
    with np.errstate(over="ignore"):
        return {kind: values * factor if kind in kinds else values for kind, values in recorded.items()}
