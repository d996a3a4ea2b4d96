"""Reparameterisations in torch: inverses, gradients, equal initial eigenvalues, refusals."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stablessm_core.maps import MAPS, default_eigenvalue_range
from stablessm_core.reparameterization import get_reparameterization, initial_eigenvalues

pytestmark = pytest.mark.slow

PAIRS = [(name, time) for name, map_ in MAPS.items() for time in map_.forms]

# G/|w| at equal lambda in discrete time, without the paper's constant
BALANCE = {
    "best": (2.0, 2.0, 2.0, 2.0),
    "exp": (4.21, 21.6, 145.0, 1090.0),
    "softplus": (4.10, 21.5, 145.0, 1090.0),
    "tanh": (12.9, 75.2, 526.0, 4040.0),
    "direct": (111.0, 1.0e4, 1e6, 1e8),
}


def reachable_grid(name: str, time: str) -> torch.Tensor:
    reach = get_reparameterization(name, time=time).reachable
    if time == "continuous":
        values = -torch.logspace(-12, 5, 2001, dtype=torch.float64)
    else:
        distance = torch.logspace(-12, 0, 1001, dtype=torch.float64)
        values = torch.cat([1 - distance, distance, distance - 1])
    return torch.tensor([v for v in values.tolist() if reach.contains(v)], dtype=torch.float64)


@pytest.mark.parametrize(("name", "time"), PAIRS)
def test_the_map_of_an_inverse_returns_the_eigenvalue(name: str, time: str) -> None:
    map_ = get_reparameterization(name, time=time)
    lambda_ = reachable_grid(name, time)
    assert len(lambda_) > 400
    error = (map_(map_.inverse(lambda_)) - lambda_).abs() / lambda_.abs().clamp(min=1)
    assert error.max() < 1e-12


@settings(deadline=None, max_examples=200)
@given(a=st.floats(1e-3, 1e3), b=st.floats(0.5, 1e3), share=st.floats(0, 1, exclude_max=True))
def test_the_inverse_of_best_is_exact_for_any_constants(a: float, b: float, share: float) -> None:
    for time, low in (("discrete", 1 - 1 / b), ("continuous", -1 / b)):
        map_ = get_reparameterization("best", time=time, a=a, b=b)
        high = 1.0 if time == "discrete" else 0.0
        lambda_ = torch.tensor([low + share * (high - low)], dtype=torch.float64)
        if map_.reachable.contains(lambda_.item()):
            assert (map_(map_.inverse(lambda_)) - lambda_).abs().item() < 1e-12


@pytest.mark.parametrize(("name", "time"), PAIRS)
def test_autograd_gives_the_analytic_derivative(name: str, time: str) -> None:
    map_ = get_reparameterization(name, time=time)
    w = torch.linspace(-9.05, 9.15, 364, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(map_, (w,), eps=1e-7, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize(("name", "time"), PAIRS)
def test_autograd_is_finite_for_every_float32_weight(name: str, time: str) -> None:
    map_ = get_reparameterization(name, time=time)
    magnitudes = torch.cat([torch.tensor([0.0, 1e-45, 1e-40, 1e-38]), torch.logspace(-37, 4, 3001), torch.tensor([1e4])])
    w = torch.cat([-magnitudes, magnitudes]).requires_grad_()
    # dt is so small that e^(dt w) of an unstable direct map does not overflow float32.
    dt = torch.full_like(w, 0.005).requires_grad_()
    value, bar = map_(w), map_.lambda_bar(w, dt)
    assert value.isfinite().all()
    assert bar.isfinite().all()
    for output in (value, bar):
        (gradient,) = torch.autograd.grad(output.sum(), w)
        assert gradient.isfinite().all()
    if time == "continuous":
        (gradient,) = torch.autograd.grad(map_.lambda_bar(w, dt).sum(), dt)
        assert gradient.isfinite().all()


@settings(deadline=None, max_examples=300)
@given(w=st.floats(-1e4, 1e4, width=32, allow_subnormal=True))
@pytest.mark.parametrize(("name", "time"), PAIRS)
def test_any_float32_weight_has_a_finite_eigenvalue_and_slope(name: str, time: str, w: float) -> None:
    map_ = get_reparameterization(name, time=time)
    weight = torch.tensor([w], dtype=torch.float32, requires_grad=True)
    value = map_(weight)
    value.backward()
    assert math.isfinite(value.item())
    assert weight.grad is not None
    assert math.isfinite(weight.grad.item())


@pytest.mark.parametrize("name", sorted(BALANCE))
def test_the_gradient_scale_over_the_weight_matches_independently_computed_values(name: str) -> None:
    map_ = get_reparameterization(name)
    w = map_.inverse(torch.tensor([0.9, 0.99, 0.999, 0.9999], dtype=torch.float64))
    expected = torch.tensor(BALANCE[name], dtype=torch.float64)
    torch.testing.assert_close(map_.gradient_scale(w) / w.abs(), expected, rtol=1.1e-2, atol=0)


@pytest.mark.parametrize(("name", "time"), PAIRS)
def test_the_gradient_scale_matches_autograd(name: str, time: str) -> None:
    map_ = get_reparameterization(name, time=time)
    low, high = default_eigenvalue_range(time)
    w = map_.inverse(initial_eigenvalues(low, high, 50, time)).requires_grad_()
    lambda_ = map_(w)
    (slope,) = torch.autograd.grad(lambda_.sum(), w)
    distance = lambda_ if time == "continuous" else 1 - lambda_.abs()
    torch.testing.assert_close(map_.gradient_scale(w), (slope.abs() / distance**2).detach(), rtol=1e-9, atol=0)


@pytest.mark.parametrize("time", ["continuous", "discrete"])
def test_every_map_starts_from_the_same_eigenvalues(time: str) -> None:
    low, high = default_eigenvalue_range(time)
    wanted = initial_eigenvalues(low, high, 64, time)
    for name in (name for name, map_ in MAPS.items() if time in map_.forms):
        map_ = get_reparameterization(name, time=time)
        w = map_.inverse(wanted).float()
        torch.testing.assert_close(map_(w).double(), wanted, rtol=3e-7, atol=0)


@pytest.mark.parametrize(
    ("time", "low", "high"), [("discrete", 0.5, 0.9999), ("discrete", -0.9999, 0.9), ("continuous", -9.0, -1e-4)]
)
def test_initial_eigenvalues_are_evenly_spaced_in_log_distance_and_include_both_ends(time: str, low: float, high: float) -> None:
    lambda_ = initial_eigenvalues(low, high, 33, time)
    assert lambda_.dtype == torch.float64
    assert lambda_[0] == low
    assert lambda_[-1] == high
    log_distance = ((1.0 if time == "discrete" else 0.0) - lambda_).log()
    torch.testing.assert_close(log_distance.diff(), log_distance.diff().mean().expand(32), rtol=1e-6, atol=1e-9)
    assert initial_eigenvalues(low, high, 1, time).tolist() == [high]


@pytest.mark.parametrize("pair", [(0.5, 1.0), (0.9, 0.5), (-1.0, 0.5), (math.nan, 0.5)])
def test_ranges_of_initial_eigenvalues_outside_the_boundary_are_refused(pair: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="low <= high"):
        initial_eigenvalues(*pair, 8, "discrete")


@pytest.mark.parametrize(
    ("name", "time", "value", "interval"),
    [
        ("best", "continuous", -2.5, "[-2, 0)"),
        ("best", "discrete", 1.0, "[-1, 1)"),
        ("exp", "discrete", -0.1, "(0, 1)"),
        ("clip", "discrete", 0.99995, "[-0.9999, 0.9999]"),
        ("sigmoid", "continuous", -1.0, "(-1, 0)"),
        ("tanh", "discrete", 1.0, "(-1, 1)"),
        ("exp", "continuous", math.nan, "(-inf, 0)"),
    ],
)
def test_the_error_for_an_unreachable_eigenvalue_names_the_reachable_interval(
    name: str, time: str, value: float, interval: str
) -> None:
    map_ = get_reparameterization(name, time=time)
    with pytest.raises(ValueError, match="unreachable") as caught:
        map_.inverse(torch.tensor([-0.5 if time == "continuous" else 0.5, value]))
    assert interval in str(caught.value)


def test_impossible_pairs_and_constants_are_refused() -> None:
    with pytest.raises(ValueError, match=r"tanh \(discrete\).*best \(continuous\)"):
        get_reparameterization("tanh", time="continuous")
    with pytest.raises(ValueError, match="possible are"):
        get_reparameterization("nonesuch")
    with pytest.raises(ValueError, match=r"b >= 0\.5"):
        get_reparameterization("best", b=0.4)
    for a in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="a is"):
            get_reparameterization("best", a=a)


def test_half_precision_weights_are_refused() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.int64):
        with pytest.raises(TypeError, match="float32 or float64"):
            get_reparameterization("exp")(torch.ones(3, dtype=dtype))


@pytest.mark.parametrize("name", sorted(MAPS))
def test_the_boundary_distance_is_one_minus_the_modulus(name: str) -> None:
    for time in MAPS[name].forms:
        map_ = get_reparameterization(name, time=time)
        w, dt = torch.linspace(-3, 3, 61, dtype=torch.float64), torch.full((61,), 0.1, dtype=torch.float64)
        expected = 1 - map_.lambda_bar(w, dt).abs()
        torch.testing.assert_close(map_.boundary_distance(w, dt), expected, rtol=1e-9, atol=1e-12)
