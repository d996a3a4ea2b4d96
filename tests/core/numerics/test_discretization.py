"""Zero-order hold: equal to high-precision values, and smooth through lambda = 0."""

from fractions import Fraction

import pytest
import torch

from stablessm_core.numerics.discretization import discretized, input_gain


def exact_gain(lambda_: float, dt: float) -> float:
    """dt (e^z - 1)/z with z = lambda dt, from its series in exact rationals; requires |z| <= 8."""
    z, term, total = Fraction(lambda_) * Fraction(dt), Fraction(1), Fraction(0)
    for k in range(1, 60):
        total += term / k
        term = term * z / k
    return float(Fraction(dt) * total)


VALUES = [-80.0, -9.0, -1.0, -0.011, -1e-3, -1e-7, -1e-30, 0.0, 1e-12, 1e-4, 0.5, 30.0]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-7), (torch.float64, 1e-15)])
@pytest.mark.parametrize("dt", [1e-3, 0.1])
def test_the_gain_is_exact_on_both_sides_of_zero(dtype: torch.dtype, tolerance: float, dt: float) -> None:
    lambda_, step = torch.tensor(VALUES, dtype=dtype), torch.full((len(VALUES),), dt, dtype=dtype)
    expected = torch.tensor([exact_gain(x.item(), step[0].item()) for x in lambda_], dtype=torch.float64)
    torch.testing.assert_close(input_gain(lambda_, step).double(), expected, rtol=tolerance, atol=0)


def test_the_float32_gradient_of_the_gain_has_no_cancellation_error() -> None:
    lambda_ = torch.cat([-torch.logspace(-9, 2, 2001), torch.logspace(-9, 1, 501), torch.zeros(1)])
    dt = torch.full_like(lambda_, 0.05)
    exact = [lambda_.double().requires_grad_(), dt.double().requires_grad_()]
    single = [lambda_.clone().requires_grad_(), dt.clone().requires_grad_()]
    wanted = torch.autograd.grad(input_gain(*exact).sum(), exact)
    got = torch.autograd.grad(input_gain(*single).sum(), single)
    for g, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(g.double(), w, rtol=5e-6, atol=0)


def test_the_gradient_matches_finite_differences_on_both_sides_of_the_series_threshold() -> None:
    lambda_ = torch.tensor([-30.0, -2.0, -1.001, -0.999, -0.3, 0.0, 0.3, 0.999, 1.001, 3.0], dtype=torch.float64)
    dt = torch.full_like(lambda_, 0.1)
    assert torch.autograd.gradcheck(input_gain, (lambda_.requires_grad_(), dt.requires_grad_()), atol=1e-9, rtol=1e-6)


def test_gains_of_extreme_modes_stay_finite() -> None:
    lambda_ = torch.tensor([-1.6e38, -1e4, 1e4, 1e-45, -1e-45], requires_grad=True)
    dt = torch.tensor([0.1, 0.1, 0.1, 0.1, 0.1], requires_grad=True)
    gain = input_gain(lambda_, dt)
    assert gain.isfinite().all()
    for gradient in torch.autograd.grad(gain.sum(), (lambda_, dt)):
        assert gradient.isfinite().all()


COMPLEX = [-0.5 + 3j, -1e-3 + 1e-3j, 1e-9j, -1e-6 + 2j, 40j, -70 + 60j, 2 - 1j, 0j, -0.011 + 31.4j]


def exact_complex_gain(lambda_: complex, dt: float) -> complex:
    """The same series for a complex lambda, with complex numbers as pairs of exact rationals."""
    re, im = Fraction(lambda_.real) * Fraction(dt), Fraction(lambda_.imag) * Fraction(dt)
    term, total = (Fraction(1), Fraction(0)), [Fraction(0), Fraction(0)]
    for k in range(1, 80):
        total = [total[0] + term[0] / k, total[1] + term[1] / k]
        term = ((term[0] * re - term[1] * im) / k, (term[0] * im + term[1] * re) / k)
    return complex(float(Fraction(dt) * total[0]), float(Fraction(dt) * total[1]))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.complex64, 4e-7), (torch.complex128, 2e-15)])
@pytest.mark.parametrize("dt", [1e-3, 0.1])
def test_the_complex_gain_is_exact_on_both_sides_of_zero(dtype: torch.dtype, tolerance: float, dt: float) -> None:
    lambda_ = torch.tensor(COMPLEX, dtype=dtype)
    step = torch.tensor(dt, dtype=dtype.to_real())
    expected = torch.tensor([exact_complex_gain(x.item(), step.item()) for x in lambda_], dtype=torch.complex128)
    error = (input_gain(lambda_, step).to(torch.complex128) - expected).abs() / expected.abs()
    assert error.max().item() < tolerance


def test_the_complex_gain_has_exact_gradients_in_float64_and_float32() -> None:
    lambda_, dt = torch.tensor(COMPLEX, dtype=torch.complex128), torch.full((len(COMPLEX),), 0.1, dtype=torch.float64)
    assert torch.autograd.gradcheck(input_gain, (lambda_.requires_grad_(), dt.requires_grad_()), atol=1e-8, rtol=1e-6)
    single = [lambda_.detach().to(torch.complex64).requires_grad_(), dt.detach().float().requires_grad_()]
    wanted = torch.autograd.grad(input_gain(lambda_, dt).abs().sum(), (lambda_, dt))
    got = torch.autograd.grad(input_gain(*single).abs().sum(), single)
    for g, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(g.to(w.dtype), w, rtol=1e-5, atol=3e-7)


@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
def test_a_complex_mode_follows_its_differential_equation(rule: str) -> None:
    lambda_ = torch.tensor([-0.5 + 3j, -1e-3 + 0.1j, -2 + 0j], dtype=torch.complex128)
    dt = torch.tensor(1e-3, dtype=torch.float64)
    lambda_bar, gain = discretized(lambda_, dt, rule)
    torch.testing.assert_close(lambda_bar, torch.exp(dt * lambda_), rtol=3e-8, atol=0)
    torch.testing.assert_close(gain, (torch.exp(dt * lambda_) - 1) / lambda_, rtol=3e-6, atol=0)
    rest = gain / (1 - lambda_bar)  # the state that a constant input of 1 converges to
    torch.testing.assert_close(rest, -1 / lambda_, rtol=1e-9, atol=0)


@pytest.mark.parametrize("modes", [10, 16])  # PyTorch computes whole vectors of 16 numbers and the rest in different ways
def test_a_mode_that_underflows_has_finite_gradients(modes: int) -> None:
    lambda_ = torch.complex(torch.full((modes,), -0.95), torch.linspace(0.1, 3.0, modes)).requires_grad_()
    dt = torch.full((modes,), 100.0, requires_grad=True)
    lambda_bar, _ = discretized(lambda_, dt, "zoh")
    assert (lambda_bar.abs() < torch.finfo(torch.float32).tiny).all()
    torch.view_as_real(lambda_bar).sum().backward()
    exact_lambda, exact_dt = lambda_.detach().to(torch.complex128).requires_grad_(), dt.detach().double().requires_grad_()
    torch.view_as_real(torch.exp(exact_dt * exact_lambda)).sum().backward()
    torch.testing.assert_close(lambda_.grad.to(torch.complex128), exact_lambda.grad, rtol=0, atol=1e-42)
    torch.testing.assert_close(dt.grad.double(), exact_dt.grad, rtol=0, atol=1e-42)


def test_gains_of_growing_complex_modes_stay_finite() -> None:
    lambda_bar, gain = discretized(torch.tensor([1e4 + 1j, -1e30 + 1j]), torch.tensor(0.1), "zoh")
    assert lambda_bar.isfinite().all()
    assert gain.isfinite().all()
