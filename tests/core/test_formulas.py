"""The maps as formulas: finite wherever the mathematics is, the same in numpy and torch, right against exact arithmetic."""

import math
import warnings
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch

from stablessm_core import formulas
from stablessm_core.formulas import FORMS

PAIRS = [(name, time) for name, forms in FORMS.items() for time in forms]
TINY = float(np.finfo(np.float32).tiny)
DENORMAL = float(np.finfo(np.float32).smallest_subnormal)


def hard_weights() -> np.ndarray:
    """float32 in [-1e4, 1e4]: zero, denormals, every magnitude, both sides of every kink."""
    magnitudes = np.concatenate([[0.0, DENORMAL, 3 * DENORMAL, TINY / 2, TINY], np.geomspace(1e-38, 1e4, 2001)])
    kinks = np.array([1e-4, 0.9999, 1.0, 0.5**0.5, math.log(2), 87.0, 88.0, 88.8, 103.0, 104.0, 709.0, 745.0])
    around = np.concatenate([np.nextafter(kinks.astype("f4"), np.float32(s)) for s in (0, np.inf)])
    w = np.concatenate([magnitudes, kinks, around]).astype(np.float32)
    return np.concatenate([-w[::-1], w])


@pytest.mark.parametrize(("name", "time"), PAIRS)
def test_no_value_or_derivative_overflows_or_is_nan(name: str, time: str) -> None:
    w = hard_weights()
    with warnings.catch_warnings(), np.errstate(over="raise", divide="raise", invalid="raise"):
        warnings.simplefilter("error")
        for b in (0.5, 1e-6, 1e6) if name == "best" and time == "continuous" else (0.5,):
            lambda_ = formulas.f(name, time, w, np, b=b)
            slope = formulas.derivative(name, time, w, np, b=b)
            distance = formulas.boundary_distance(name, time, w, np, dt=np.float32(0.1), b=b)
            bar = formulas.lambda_bar(name, time, w, np, dt=np.float32(0.1), b=b)
            for values in (lambda_, slope, bar, distance):
                assert values.dtype == np.float32
                assert values.shape == w.shape
            assert np.isfinite(lambda_).all()
            assert np.isfinite(slope).all()
            assert np.isfinite(bar).all()
            # 1 - e^1000 of an unstable direct map is beyond float32; the saturated value is still finite
            assert np.isfinite(distance).all()


@pytest.mark.parametrize(("name", "time"), PAIRS)
def test_the_gradient_scale_is_never_nan_and_infinite_only_on_the_boundary(name: str, time: str) -> None:
    w = hard_weights()
    with np.errstate(over="ignore", divide="ignore"):
        scale = formulas.gradient_scale(name, time, w, np)
    assert not np.isnan(scale).any()
    assert (scale >= 0).all()
    with np.errstate(over="ignore", divide="ignore"):
        exact = formulas.gradient_scale(name, time, w.astype(np.float64), np)
    fits = exact < 1e37
    np.testing.assert_allclose(scale[fits & (exact > 1e-30)], exact[fits & (exact > 1e-30)], rtol=2e-3)
    assert (scale[~fits] > 1e36).all()


@pytest.mark.parametrize("kind", ["f", "derivative", "gradient_scale", "boundary_distance", "lambda_bar"])
@pytest.mark.parametrize(("name", "time"), PAIRS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy_and_torch_agree(kind: str, name: str, time: str, dtype: type) -> None:
    w = hard_weights().astype(dtype)
    formula: Callable[..., np.ndarray] = getattr(formulas, kind)
    more = {"dt": dtype(0.05)} if kind in ("boundary_distance", "lambda_bar") else {}
    with np.errstate(over="ignore", divide="ignore"):
        in_numpy = formula(name, time, w, np, **more)
    torch_more = {key: torch.tensor(value) for key, value in more.items()}
    in_torch = formula(name, time, torch.from_numpy(w), torch, **torch_more).numpy()
    assert in_torch.dtype == in_numpy.dtype == dtype
    tolerance = {np.float32: 2e-5, np.float64: 1e-13}[dtype]
    np.testing.assert_allclose(in_torch, in_numpy, rtol=tolerance, atol=1e-37)


@pytest.mark.parametrize(("name", "time"), PAIRS)
def test_the_derivative_is_the_slope_of_the_map(name: str, time: str) -> None:
    w = np.concatenate([-np.geomspace(1e-3, 20, 301)[::-1], np.geomspace(1e-3, 20, 301)])
    kinks = {"relu": [0.0], "clip": [-1e-4] if time == "continuous" else [-0.9999, 0.9999], "heavytail": [0.0]}.get(name, [])
    w = w[[all(abs(x - k) > 1e-5 for k in kinks) for x in w]]
    h = 1e-6 * np.maximum(np.abs(w), 0.1)
    slope = (formulas.f(name, time, w + h, np) - formulas.f(name, time, w - h, np)) / (2 * h)
    np.testing.assert_allclose(formulas.derivative(name, time, w, np), slope, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(("name", "time"), PAIRS)
def test_the_gradient_scale_is_the_quotient_of_theorem_3_6(name: str, time: str) -> None:
    w = np.concatenate([-np.geomspace(1e-2, 9, 201)[::-1], np.geomspace(1e-2, 9, 201)])
    lambda_, slope = formulas.f(name, time, w, np), formulas.derivative(name, time, w, np)
    distance = np.abs(lambda_) if time == "continuous" else 1 - np.abs(lambda_)
    well = (np.abs(distance) > 1e-4) & (np.abs(w - 1) > 1e-9)
    expected = np.divide(np.abs(slope), distance**2, out=np.zeros_like(w), where=well)
    got = formulas.gradient_scale(name, time, w, np)
    np.testing.assert_allclose(got[well], expected[well], rtol=1e-7)


def test_best_near_minus_one_is_far_from_balanced() -> None:
    """The published 2|w| says 0.2 at w = 0.1; the bound behind it is about 1/(2|w|^3) = 500 there."""
    got = formulas.gradient_scale("best", "discrete", np.array([0.1, 0.01]), np)
    np.testing.assert_allclose(got, [500.0, 5e5], rtol=1e-12)
    assert formulas.gradient_scale("best", "discrete", np.array([0.0]), np)[0] == math.inf


@pytest.mark.parametrize("w", [1e-6, 1e-3, 0.1, 0.7, 3.0, 300.0])
def test_the_distance_of_best_does_not_cancel(w: float) -> None:
    exact_w = Fraction(float(np.float32(w)))
    lambda_ = 1 - 1 / (exact_w * exact_w + Fraction(1, 2))
    got = formulas.boundary_distance("best", "discrete", np.array([w], dtype=np.float32), np)[0]
    assert got == pytest.approx(float(1 - abs(lambda_)), rel=1e-6)


@pytest.mark.parametrize("name", [name for name, forms in FORMS.items() if "discrete" in forms])
def test_complement_keeps_the_digits_that_one_minus_f_loses(name: str) -> None:
    w = np.array([0.3, 2.0, 5.0, 8.0]) if name not in ("direct", "clip") else np.array([0.3, 0.5, 0.9])
    w = -w if name in ("exp", "softplus", "heavytail") else w
    single = formulas.complement(name, w.astype(np.float32), np)
    np.testing.assert_allclose(single, 1 - formulas.f(name, "discrete", w, np), rtol=2e-6)


@pytest.mark.parametrize(("name", "time"), PAIRS)
def test_the_reachable_interval_holds_every_value(name: str, time: str) -> None:
    reach = formulas.reachable_interval(name, time)
    values = formulas.f(name, time, np.linspace(-30, 30, 6001), np)
    inside = np.array([reach.contains(v) for v in values])
    at_rounded_end = (values == reach.low) | (values == reach.high)
    assert (inside | at_rounded_end).all()
    assert inside[2900:3101].all()


def test_an_interval_prints_as_in_a_textbook() -> None:
    assert str(formulas.reachable_interval("best", "discrete")) == "[-1, 1)"
    assert str(formulas.reachable_interval("relu", "continuous")) == "(-inf, 0]"


def test_a_form_that_does_not_exist_is_refused() -> None:
    w = np.zeros(1)
    for formula in (formulas.f, formulas.derivative, formulas.gradient_scale):
        with pytest.raises(ValueError, match="tanh"):
            formula("tanh", "continuous", w, np)
        with pytest.raises(ValueError, match="nonesuch"):
            formula("nonesuch", "discrete", w, np)
    with pytest.raises(ValueError, match="step size"):
        formulas.boundary_distance("exp", "continuous", w, np)
