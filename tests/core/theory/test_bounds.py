"""The gradient bound against sums and autograd, at positive and negative eigenvalues."""

import numpy as np
import pytest
import torch

from stablessm_core.maps import MAPS, formulas
from stablessm_core.theory import gradient_bound, output_bound, published_gradient_bound

PAIRS = [(name, time) for name, map_ in MAPS.items() for time in map_.forms]
LENGTH = 400


@pytest.mark.parametrize(("name", "time"), [pair for pair in PAIRS if pair[1] == "discrete"])
def test_the_discrete_bound_is_the_largest_gradient_that_autograd_finds(name: str, time: str) -> None:
    weights = [w for w in (-0.55, 0.31, 0.8) if abs(float(formulas(name, time, np).f(np.float64(w)))) < 0.97]
    assert weights
    for value in weights:
        w = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        lambda_ = formulas(name, time, torch).lambda_bar(w)
        # y at the last step responds to the input of k steps before by lambda^k; the worst input has the sign of each term
        slopes = [torch.autograd.grad(lambda_**k, w, retain_graph=True)[0].abs() for k in range(1, LENGTH)]
        expected = 3.0 * float(torch.stack(slopes).sum())
        np.testing.assert_allclose(gradient_bound(name, time, value, c=-3.0, length=LENGTH), expected, rtol=1e-9)
        np.testing.assert_allclose(gradient_bound(name, time, value, c=-3.0), expected, rtol=1e-3, atol=1e-12)


def test_the_published_bound_is_250_times_too_small_at_a_negative_eigenvalue() -> None:
    np.testing.assert_allclose(published_gradient_bound("best", "discrete", 0.1), 0.2, rtol=1e-9)
    np.testing.assert_allclose(gradient_bound("best", "discrete", 0.1), 500.0, rtol=1e-9)
    np.testing.assert_allclose(gradient_bound("best", "discrete", 0.1, length=4000), 500.0, rtol=1e-6)


@pytest.mark.parametrize(("name", "time"), PAIRS)
def test_both_bounds_agree_where_the_eigenvalue_is_positive_or_time_is_continuous(name: str, time: str) -> None:
    w = np.linspace(0.8, 3.0, 12) * (-1 if (name, time) in (("direct", "continuous"), ("clip", "continuous")) else 1)
    lambda_ = formulas(name, time, np).f(w)
    inside = (lambda_ < 0) if time == "continuous" else (lambda_ > 0) & (lambda_ < 1)
    assert inside.any()
    w = w[inside]
    np.testing.assert_allclose(gradient_bound(name, time, w), published_gradient_bound(name, time, w), rtol=1e-9)


@pytest.mark.parametrize("name", ["exp", "best", "softplus"])
def test_the_continuous_bound_on_a_finite_time_is_the_integral(name: str) -> None:
    s = np.linspace(0, 30, 300_001)
    map_ = formulas(name, "continuous", np)
    for w in (-2.0, 0.4):
        expected = np.trapezoid(s * np.exp(map_.f(np.float64(w)) * s), s) * abs(map_.derivative(np.float64(w)))
        np.testing.assert_allclose(gradient_bound(name, "continuous", w, length=30), expected, rtol=1e-6)


def test_outside_the_boundary_the_endless_bounds_are_infinite_and_finite_ones_are_sums() -> None:
    w = np.array([1.0, -1.0, 1.1])
    assert np.isinf(gradient_bound("direct", "discrete", w)).all()
    assert np.isinf(gradient_bound("direct", "continuous", np.abs(w))).all()
    assert np.isinf(output_bound(w)).all()
    np.testing.assert_allclose(gradient_bound("direct", "discrete", w[:2], length=101), 5050.0)
    np.testing.assert_allclose(output_bound(w, length=50), [50, 50, (1.1**50 - 1) / 0.1])
    np.testing.assert_allclose(gradient_bound("direct", "continuous", 0.0, length=10), 50.0)


def test_on_finite_sequences_output_and_gradient_become_flat_near_the_boundary() -> None:
    lambda_ = 1 - np.array([0.1, 1e-6])
    np.testing.assert_allclose(output_bound(lambda_, length=1000), [10, 1000], rtol=1e-3)
    np.testing.assert_allclose(gradient_bound("direct", "discrete", lambda_, length=1000), [100, 1000 * 999 / 2], rtol=1e-3)


def test_bounds_of_nan_are_nan_and_a_length_below_1_is_refused() -> None:
    assert np.isnan(gradient_bound("exp", "discrete", [np.nan])).all()
    assert np.isnan(output_bound([np.nan])).all()
    with pytest.raises(ValueError, match="length is 0"):
        gradient_bound("exp", "discrete", 0.0, length=0)
