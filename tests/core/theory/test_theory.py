"""The numbers of the theory page: the paper's table, the flatness of best, the memory of a diagonal system."""

import math

import numpy as np
import pytest

from stablessm_core.maps import MAPS
from stablessm_core.theory import (
    curves,
    gradient_over_weight,
    memory_function,
    nearest_memory,
    polynomial_memory,
    relative_slope_at,
)


@pytest.mark.parametrize("time", ["continuous", "discrete"])
def test_every_map_that_supports_a_time_has_curves_without_nan(time: str) -> None:
    found = curves(time)
    assert set(found) == {name for name, map_ in MAPS.items() if time in map_.forms}
    for curve in found.values():
        for values in (curve.w, curve.eigenvalue, curve.gradient_scale, curve.distance, curve.gradient_over_weight):
            assert not np.isnan(values).any()
        assert np.isfinite(curve.eigenvalue).all()
        assert len(curve.distance) == len(curve.gradient_over_weight) > 300


@pytest.mark.parametrize("time", ["continuous", "discrete"])
def test_only_the_map_best_has_a_constant_ratio_towards_the_boundary(time: str) -> None:
    for name, curve in curves(time).items():
        near = curve.gradient_over_weight[curve.distance < 0.3]
        assert bool(near.max() / near.min() < 1.001) == (name == "best"), name


def test_the_ratio_matches_independently_computed_values() -> None:
    lambdas = [0.9, 0.99, 0.999, 0.9999]
    np.testing.assert_allclose(gradient_over_weight("best", "discrete", lambdas), 2.0, rtol=1e-9)
    np.testing.assert_allclose(gradient_over_weight("exp", "discrete", lambdas), [4.21, 21.6, 145, 1090], rtol=5e-3)
    np.testing.assert_allclose(gradient_over_weight("tanh", "discrete", lambdas), [12.9, 75.2, 526, 4040], rtol=5e-3)
    np.testing.assert_allclose(gradient_over_weight("best", "continuous", [-2.0, -0.5, -1e-6], a=3.0), 6.0, rtol=1e-9)
    assert gradient_over_weight("exp", "continuous", -1.0) == math.inf


def test_an_unreachable_eigenvalue_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[-2, 0\)"):
        gradient_over_weight("best", "continuous", [-0.5, -3.0])


def test_the_memory_function_is_the_response_to_an_impulse() -> None:
    rng = np.random.default_rng(0)
    modes, b, c = rng.uniform(-0.5, 0.99, 8), rng.normal(size=8), rng.normal(size=8)
    h, response = b.copy(), []
    for _ in range(50):
        response.append(abs(c @ h))
        h = modes * h
    np.testing.assert_allclose(memory_function(modes, b, c, 50), response, rtol=1e-12)
    with pytest.raises(ValueError, match="d_state"):
        memory_function(modes, b[:3], c, 5)


def test_discrete_best_has_no_finite_ratio_on_the_lower_boundary() -> None:
    assert math.isinf(float(gradient_over_weight("best", "discrete", -1.0)))
    for b in (0.75, 2.0):
        at_zero, near = (float(gradient_over_weight("best", "discrete", 1 - 1 / (w * w + b), b=b)) for w in (0.0, 1e-3))
        assert at_zero == pytest.approx(near, rel=1e-4)


def test_the_relative_slope_near_the_boundary_matches_the_derived_formulas() -> None:
    d = 1e-3
    limits = {"direct": 1 / d, "relu": (1 - d) / d, "tanh": 2 - d, "exp": -(1 - d) * math.log1p(-d) / d, "softplus": 1 - d,
              "best": 2 * math.sqrt(d - d * d / 2), "heavytail": (1 - d) * math.log1p(-d) ** 2 / d}  # fmt: skip
    for name, limit in limits.items():
        assert float(relative_slope_at(name, "discrete", 1 - d)) == pytest.approx(limit, rel=1e-6), name
    continuous = {
        "direct": 1 / d,
        "exp": 1.0,
        "softplus": -math.expm1(-d) / d,
        "heavytail": d,
        "best": 2 * math.sqrt(d - d * d / 2),
    }
    for name, limit in continuous.items():
        assert float(relative_slope_at(name, "continuous", -d)) == pytest.approx(limit, rel=1e-5), name


def test_only_eigenvalues_near_the_boundary_can_follow_a_polynomial_memory() -> None:
    t = np.unique(np.geomspace(1, 10_000, 300).round()) - 1
    wanted = polynomial_memory(t)
    short, long = (nearest_memory(1 - np.geomspace(*ends, 32), wanted, t) for ends in ((0.5, 0.01), (0.5, 1e-4)))
    assert np.abs(long / wanted - 1).max() < 0.2
    assert np.abs(short / wanted - 1)[t < 100].max() < 0.5
    assert abs(short[-1] / wanted[-1]) < 1e-3, "the short memory must have vanished after 10,000 steps"
    alternating = nearest_memory([-0.9, 2.0], (-0.9) ** np.arange(5.0), np.arange(5))
    np.testing.assert_allclose(alternating, (-0.9) ** np.arange(5.0), rtol=1e-4)
