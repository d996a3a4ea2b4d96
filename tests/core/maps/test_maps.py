"""The maps as formulas: finite wherever their exact value is, equal in numpy and torch, correct against exact arithmetic."""

import math
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from stablessm_core import maps
from stablessm_core.map import Array, Map, by_time
from stablessm_core.maps import MAPS, formulas
from stablessm_core.maps.tanh import TanhDiscrete
from stablessm_core.reparameterization import get_reparameterization
from stablessm_core.telemetry.forms import Form
from stablessm_core.theory import gentlest_maps

PAIRS = [(name, time) for name, map_ in MAPS.items() for time in map_.forms]
TINY = float(np.finfo(np.float32).tiny)
DENORMAL = float(np.finfo(np.float32).smallest_subnormal)


def hard_weights() -> np.ndarray:
    """float32 weights in [-1e4, 1e4]: zero, denormals, every magnitude, and both sides of every kink."""
    magnitudes = np.concatenate([[0.0, DENORMAL, 3 * DENORMAL, TINY / 2, TINY], np.geomspace(1e-38, 1e4, 2001)])
    kinks = np.array([1e-4, 0.9999, 1.0, 0.5**0.5, math.log(2), 87.0, 88.0, 88.8, 103.0, 104.0, 709.0, 745.0])
    around = np.concatenate([np.nextafter(kinks.astype("f4"), np.float32(s)) for s in (0, np.inf)])
    w = np.concatenate([magnitudes, kinks, around]).astype(np.float32)
    return np.concatenate([-w[::-1], w])


@pytest.mark.parametrize(("name", "time"), PAIRS)
def test_no_map_value_or_derivative_overflows_or_is_nan(name: str, time: str) -> None:
    w = hard_weights()
    with warnings.catch_warnings(), np.errstate(over="raise", divide="raise", invalid="raise"):
        warnings.simplefilter("error")
        for b in (0.5, 1e-6, 1e6) if name == "best" and time == "continuous" else (0.5,):
            lambda_ = formulas(name, time, np, b=b).f(w)
            slope = formulas(name, time, np, b=b).derivative(w)
            distance = formulas(name, time, np, b=b).boundary_distance(w, np.float32(0.1))
            bar = formulas(name, time, np, b=b).lambda_bar(w, np.float32(0.1))
            for values in (lambda_, slope, bar, distance):
                assert values.dtype == np.float32
                assert values.shape == w.shape
            assert np.isfinite(lambda_).all()
            assert np.isfinite(slope).all()
            assert np.isfinite(bar).all()
            # 1 - e^1000 of an unstable direct map exceeds float32, but the saturated value is finite
            assert np.isfinite(distance).all()


@pytest.mark.parametrize(("name", "time"), PAIRS)
def test_the_gradient_scale_is_never_nan_and_is_infinite_only_on_the_boundary(name: str, time: str) -> None:
    w = hard_weights()
    with np.errstate(over="ignore", divide="ignore"):
        scale = formulas(name, time, np).gradient_scale(w)
    assert not np.isnan(scale).any()
    assert (scale >= 0).all()
    with np.errstate(over="ignore", divide="ignore"):
        exact = formulas(name, time, np).gradient_scale(w.astype(np.float64))
    fits = exact < 1e37
    np.testing.assert_allclose(scale[fits & (exact > 1e-30)], exact[fits & (exact > 1e-30)], rtol=2e-3)
    assert (scale[~fits] > 1e36).all()


@pytest.mark.parametrize("kind", ["f", "derivative", "gradient_scale", "boundary_distance", "lambda_bar"])
@pytest.mark.parametrize(("name", "time"), PAIRS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy_and_torch_formulas_agree(kind: str, name: str, time: str, dtype: type) -> None:
    w = hard_weights().astype(dtype)
    dt = [dtype(0.05)] if kind in ("boundary_distance", "lambda_bar") else []
    with np.errstate(over="ignore", divide="ignore"):
        in_numpy = getattr(formulas(name, time, np), kind)(w, *dt)
    in_torch = getattr(formulas(name, time, torch), kind)(torch.from_numpy(w), *map(torch.tensor, dt)).numpy()
    assert in_torch.dtype == in_numpy.dtype == dtype
    tolerance = {np.float32: 2e-5, np.float64: 1e-13}[dtype]
    np.testing.assert_allclose(in_torch, in_numpy, rtol=tolerance, atol=1e-37)


@pytest.mark.parametrize(("name", "time"), PAIRS)
def test_the_derivative_matches_the_numerical_slope_of_the_map(name: str, time: str) -> None:
    w = np.concatenate([-np.geomspace(1e-3, 20, 301)[::-1], np.geomspace(1e-3, 20, 301)])
    kinks = {"relu": [0.0], "clip": [-1e-4] if time == "continuous" else [-0.9999, 0.9999], "heavytail": [0.0]}.get(name, [])
    w = w[[all(abs(x - k) > 1e-5 for k in kinks) for x in w]]
    h = 1e-6 * np.maximum(np.abs(w), 0.1)
    slope = (formulas(name, time, np).f(w + h) - formulas(name, time, np).f(w - h)) / (2 * h)
    np.testing.assert_allclose(formulas(name, time, np).derivative(w), slope, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(("name", "time"), PAIRS)
def test_the_gradient_scale_is_the_quotient_of_theorem_3_6(name: str, time: str) -> None:
    w = np.concatenate([-np.geomspace(1e-2, 9, 201)[::-1], np.geomspace(1e-2, 9, 201)])
    lambda_, slope = formulas(name, time, np).f(w), formulas(name, time, np).derivative(w)
    distance = np.abs(lambda_) if time == "continuous" else 1 - np.abs(lambda_)
    well = (np.abs(distance) > 1e-4) & (np.abs(w - 1) > 1e-9)
    expected = np.divide(np.abs(slope), distance**2, out=np.zeros_like(w), where=well)
    got = formulas(name, time, np).gradient_scale(w)
    np.testing.assert_allclose(got[well], expected[well], rtol=1e-7)


def test_the_gradient_scale_of_best_is_large_near_minus_one() -> None:
    """At w = 0.1 the published formula 2|w| gives 0.2, but the bound that it simplifies is about 1/(2|w|^3) = 500."""
    got = formulas("best", "discrete", np).gradient_scale(np.array([0.1, 0.01]))
    np.testing.assert_allclose(got, [500.0, 5e5], rtol=1e-12)
    assert formulas("best", "discrete", np).gradient_scale(np.array([0.0]))[0] == math.inf


@pytest.mark.parametrize("w", [1e-6, 1e-3, 0.1, 0.7, 3.0, 300.0])
def test_the_boundary_distance_of_best_has_no_cancellation_error(w: float) -> None:
    exact_w = Fraction(float(np.float32(w)))
    lambda_ = 1 - 1 / (exact_w * exact_w + Fraction(1, 2))
    got = formulas("best", "discrete", np).boundary_distance(np.array([w], dtype=np.float32))[0]
    assert got == pytest.approx(float(1 - abs(lambda_)), rel=1e-6)


@pytest.mark.parametrize("name", [name for name, map_ in MAPS.items() if "discrete" in map_.forms])
def test_complement_keeps_the_digits_that_computing_one_minus_f_loses(name: str) -> None:
    w = np.array([0.3, 2.0, 5.0, 8.0]) if name not in ("direct", "clip") else np.array([0.3, 0.5, 0.9])
    w = -w if name in ("exp", "softplus", "heavytail") else w
    single = formulas(name, "discrete", np).complement(w.astype(np.float32))
    np.testing.assert_allclose(single, 1 - formulas(name, "discrete", np).f(w), rtol=2e-6)


@pytest.mark.parametrize(("name", "time"), PAIRS)
def test_the_reachable_interval_holds_every_value(name: str, time: str) -> None:
    reach = formulas(name, time, np).reachable
    values = formulas(name, time, np).f(np.linspace(-30, 30, 6001))
    inside = np.array([reach.contains(v) for v in values])
    at_rounded_end = (values == reach.low) | (values == reach.high)
    assert (inside | at_rounded_end).all()
    assert inside[2900:3101].all()


def test_an_interval_is_printed_in_mathematical_notation() -> None:
    assert str(formulas("best", "discrete", np).reachable) == "[-1, 1)"
    assert str(formulas("relu", "continuous", np).reachable) == "(-inf, 0]"


def test_unknown_maps_and_unsupported_time_forms_are_refused() -> None:
    with pytest.raises(ValueError, match=r"tanh.*possible are direct \(continuous\)"):
        formulas("tanh", "continuous", np)
    with pytest.raises(ValueError, match="nonesuch"):
        formulas("nonesuch", "discrete", np)
    with pytest.raises(ValueError, match="step size"):
        formulas("exp", "continuous", np).boundary_distance(np.zeros(1))


def test_no_weight_of_a_guarded_map_reaches_the_boundary() -> None:
    for name, time in PAIRS:
        reach, edge = formulas(name, time, np).reachable, 1.0 if time == "discrete" else 0.0
        assert not (MAPS[name].guarded and (reach.contains(edge) or reach.high > edge)), name
    assert [name for name, map_ in MAPS.items() if not map_.guarded] == ["direct", "relu", "clip"]


class HalfTurn(TanhDiscrete):
    """atan scaled to (-1, 1), with only the formulas that the tests need."""

    text = "2/pi atan(w)"

    def f(self, w: Array) -> Array:
        return 2 / math.pi * self.xp.arctan(w)

    def derivative(self, w: Array) -> Array:
        return 2 / math.pi / (1 + w * w)


def test_a_new_map_needs_only_one_record_and_works_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MAPS, "half_turn", Map("half_turn", by_time(HalfTurn), guarded=True))
    w = torch.linspace(-3, 3, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(get_reparameterization("half_turn"), (w,))
    recorded = {"weight": w.detach().numpy()}
    derived = Form.of_map("half_turn", "discrete").derive("eigenvalue", recorded)
    np.testing.assert_allclose(derived, get_reparameterization("half_turn")(w).detach().numpy(), rtol=1e-15)
    assert "half_turn" in dict(gentlest_maps("discrete", 0.5))


def test_every_file_of_the_maps_folder_defines_the_map_of_its_name() -> None:
    files = {file.stem for file in Path(maps.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == set(MAPS)
    assert [*MAPS][:9] == ["direct", "relu", "clip", "exp", "softplus", "tanh", "best", "heavytail", "sigmoid"]
