"""L2RU: its gain is below gamma for any weights; an overflow appears as NaN, not as an exception."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stablessm_core.layers import L2RU
from stablessm_core.layers.building import Surroundings, build_layer
from stablessm_core.layers.parts.l2ru_certificate import System, bounded_real_matrix, gain_on_grid
from stablessm_core.layers.parts.l2ru_scan import matrix_scan
from stablessm_core.spec.layers.l2ru import L2ru
from stablessm_core.watch.watchable import watched_records


def made(d_model: int = 4, **options: Any) -> L2RU:
    torch.manual_seed(0)
    layer = build_layer(L2ru.model_validate(options), Surroundings(d_model, None))
    assert isinstance(layer, L2RU)
    return layer


def with_random_weights(d_model: int, seed: int, scale: float = 3.0, **options: Any) -> L2RU:
    """The layer with all weights replaced by normally distributed values of standard deviation `scale`."""
    layer = made(d_model, **options).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(scale * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return layer


def at_alpha(alpha: float, d_model: int, seed: int) -> L2RU:
    """A float32 layer with random weights and this alpha. Above alpha = 16 its published matrices are far from normal."""
    layer = with_random_weights(d_model, seed, scale=1.0).float()
    with torch.no_grad():
        layer.alpha.fill_(alpha)
    return layer


@torch.no_grad()
def run_system(layer: L2RU) -> System:
    """The matrices of the system that the layer's `step` computes, in float64."""
    unit, zero = torch.eye(layer.C.shape[-1]), torch.zeros(layer.C.shape[1:])
    (C, A), (D, B) = layer.step(zero, unit), layer.step(unit, zero)
    return System(*(matrix.T.double() for matrix in (A, B, C, D)), unit.double())


def by_frequency(system: System, frequencies: int) -> float:
    """The largest gain on a grid of frequencies, computed one frequency at a time."""
    A, B, C, D, _ = (matrix.detach().to(torch.complex128) for matrix in system)
    largest = 0.0
    for k in range(frequencies):
        z = complex(math.cos(math.pi * k / (frequencies - 1)), math.sin(math.pi * k / (frequencies - 1)))
        response = C @ torch.linalg.inv(z * torch.eye(len(A)) - A) @ B + D
        largest = max(largest, torch.linalg.svdvals(response)[0].item())
    return largest


@pytest.mark.parametrize(("gamma", "modulus"), [(1.0, 0.97612), (2.0, 0.95419)])
def test_the_identity_initialization_starts_all_eigenvalues_at_the_published_modulus(gamma: float, modulus: float) -> None:
    values = made(gamma=gamma).measured()["true_eigenvalue"]
    torch.testing.assert_close(values, torch.full((4,), modulus), rtol=0, atol=1e-5)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("d_model", [1, 2, 7])
@pytest.mark.parametrize("gamma", [0.1, 1.0, 30.0])
@pytest.mark.slow
def test_the_gain_is_below_gamma_for_any_weights(gamma: float, d_model: int, seed: int) -> None:
    layer = with_random_weights(d_model, seed, gamma=gamma)
    system = layer.system()
    matrix = bounded_real_matrix(system, layer.gamma)
    assert torch.linalg.eigvalsh((matrix + matrix.T) / 2)[-1] <= 1e-9 * matrix.abs().max()
    measured = layer.measured()
    assert measured["certified_gain"].item() == pytest.approx(gamma)
    assert 0 < measured["measured_gain"].item() <= gamma * (1 + 1e-6)
    assert measured["true_eigenvalue"][0] < 1


def test_the_certificate_holds_even_if_the_published_formula_has_a_singular_matrix() -> None:
    layer = made(3).double()
    with torch.no_grad():
        layer.C[0, 1] = 0.0
        layer.Dt[0, :, 2] = 0.0
        layer.X21[0, 2] = 0.0
    system = layer.system()
    assert torch.linalg.matrix_rank(layer.C[0].T @ layer.Dt[0]) < 3
    matrix = bounded_real_matrix(system, layer.gamma)
    assert torch.linalg.eigvalsh((matrix + matrix.T) / 2)[-1] < 0
    assert gain_on_grid(system) <= 1


def test_the_matrices_match_the_published_formulas() -> None:
    layer = with_random_weights(4, 0, scale=1.0, gamma=1.5)
    n, gamma, system = 4, 1.5, layer.system()
    lower, upper = torch.tril_indices(n, n), torch.triu_indices(n, n, offset=1)
    matrices = torch.zeros(3, n, n, dtype=torch.float64)
    for matrix, places, weights in zip(matrices, (lower, lower, upper), (layer.X11, layer.X22, layer.skew), strict=True):
        matrix[tuple(places)] = weights[0].detach()
    X11, X22, skew = matrices
    skew = skew - skew.T
    X21, C, Dt = layer.X21[0], layer.C[0], layer.Dt[0]
    unit = torch.eye(n, dtype=torch.float64)
    Z = X21 @ X21.T + X22 @ X22.T + Dt.T @ Dt + unit
    beta = gamma**2 * torch.sigmoid(layer.alpha) / torch.linalg.matrix_norm(Z, 2)
    H12 = beta.sqrt() * (X11 @ X21.T + C.T @ Dt)
    V = beta * Z - gamma**2 * unit
    N = 1e-6 * unit - H12 @ torch.linalg.inv(V) @ H12.T
    K = torch.linalg.cholesky(N + X11 @ X11.T + C.T @ C + beta * unit)
    A = torch.linalg.inv(K).T @ (unit - skew) @ torch.linalg.inv(unit + skew) @ torch.linalg.cholesky(N).T
    B = A @ torch.linalg.inv(H12.T) @ V
    torch.testing.assert_close(system.K, K, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(system.A, K.T @ A @ torch.linalg.inv(K.T), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(system.B, K.T @ B, rtol=1e-3, atol=1e-3)  # equal except for the jitter
    torch.testing.assert_close(system.C, C @ torch.linalg.inv(K.T), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(system.D, beta.sqrt() * Dt)


@pytest.mark.parametrize("d_model", [1, 3, 5])
@pytest.mark.parametrize("frequencies", [2, 101])
def test_gain_on_grid_returns_the_largest_gain_over_the_frequencies(d_model: int, frequencies: int) -> None:
    system = with_random_weights(d_model, 1).system()
    assert gain_on_grid(system, frequencies).item() == pytest.approx(by_frequency(system, frequencies), rel=1e-9)


def test_signals_are_amplified_by_less_than_the_gain() -> None:
    layer = with_random_weights(5, 3, gamma=0.7)
    x = torch.randn(20, 400, 5, dtype=torch.float64)
    with torch.no_grad():
        y = layer(x)
    assert (y.flatten(1).norm(dim=1) <= 0.7 * x.flatten(1).norm(dim=1)).all()


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [-10.0, 4.0, 16.0, 18.0, 20.0, 24.0, 30.0, 36.0, 100.0])
@pytest.mark.parametrize("d_model", [3, 16])
def test_in_float32_the_scan_matches_single_steps_and_the_certificate_describes_them(alpha: float, d_model: int) -> None:
    for seed in range(4):
        layer = at_alpha(alpha, d_model, seed)
        x = torch.randn(2, 200, d_model, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            whole, state, outputs = layer(x), layer.initial_state(2), []
            for t in range(200):
                y, state = layer.step(x[:, t], state)
                outputs.append(y)
        torch.testing.assert_close(whole, torch.stack(outputs, 1), rtol=0, atol=1e-5 * float(whole.abs().max()))
        assert (whole.flatten(1).norm(dim=1) <= x.flatten(1).norm(dim=1)).all()
        system, measured = run_system(layer), layer.measured()
        moduli = torch.linalg.eigvals(system.A).abs().sort(descending=True).values
        assert moduli[0] < 1
        torch.testing.assert_close(measured["true_eigenvalue"], moduli.float(), rtol=0, atol=1e-5)
        gain = gain_on_grid(system).item()
        assert gain <= 1
        assert measured["measured_gain"].item() == pytest.approx(gain, rel=1e-5)


@pytest.mark.parametrize("alpha", [-10.0, 16.0, 36.0])
def test_gradients_in_float32_match_the_gradients_in_float64(alpha: float) -> None:
    layer, found = at_alpha(alpha, 8, 1), []
    x = torch.randn(2, 50, 8, generator=torch.Generator().manual_seed(1))
    for dtype in (torch.float32, torch.float64):
        layer.to(dtype).zero_grad()
        layer(x.to(dtype)).square().mean().backward()
        found.append([p.grad.detach().double() for p in layer.parameters() if p.grad is not None])
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))


@pytest.mark.parametrize(("length", "d_model"), [(1, 3), (2, 1), (7, 4), (130, 5), (4097, 2)])
def test_single_steps_match_the_scan_and_the_output_uses_the_previous_state(length: int, d_model: int) -> None:
    layer = with_random_weights(d_model, 2, scale=1.0)
    A, B, C, D, _ = layer.system()
    x = torch.randn(2, length, d_model, dtype=torch.float64)
    with torch.no_grad():
        whole = layer(x)
        h, outputs = torch.zeros(2, d_model, dtype=torch.float64), []
        for t in range(length):
            outputs.append(h @ C.T + x[:, t] @ D.T)
            h = h @ A.T + x[:, t] @ B.T
        state = layer.initial_state(2)
        for t in range(min(length, 40)):
            y, state = layer.step(x[:, t], state)
            torch.testing.assert_close(y, outputs[t], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(whole, torch.stack(outputs, 1), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(layer.last_state, h.abs().amax(1, keepdim=True), rtol=1e-10, atol=1e-10)


def test_the_scan_and_its_gradients_are_exact() -> None:
    A = 0.5 * torch.randn(3, 3, dtype=torch.float64)
    b = torch.randn(2, 7, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(matrix_scan, (A.requires_grad_(), b.requires_grad_()))
    assert torch.autograd.gradgradcheck(matrix_scan, (A, b))


@pytest.mark.slow
def test_gradients_are_exact() -> None:
    layer = with_random_weights(3, 5, scale=0.7, train_gamma=True)
    x = torch.randn(2, 7, 3, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in layer.named_parameters()]

    def of(x: Tensor, *parameters: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))
        return y

    assert torch.autograd.gradcheck(of, (x, *layer.parameters()))


@pytest.mark.parametrize(("d_model", "options", "wanted"), [(6, {}, 166), (1, {}, 6), (5, {"train_gamma": True}, 117)])
def test_parameters_are_counted_exactly(d_model: int, options: dict[str, Any], wanted: int) -> None:
    assert L2ru.model_validate(options).parameters(d_model) == wanted
    assert sum(p.numel() for p in made(d_model, **options).parameters()) == wanted


def test_the_spectral_radius_is_watched_and_depends_on_all_weights() -> None:
    layer = with_random_weights(6, 4).float()
    radius, alpha = watched_records(nn.Sequential(layer))
    assert layer.gates() == {}
    layer(torch.randn(3, 9, 6))
    decay = layer.gates()["decay"]
    assert decay.shape == (3, 1)
    numbers = dict(zip(("gate_min", "gate_mean", "gate_max"), decay.double().numpy(), strict=True))
    eigenvalue = radius.form.derive("eigenvalue", numbers)
    assert eigenvalue.item() == pytest.approx(torch.linalg.eigvals(layer.system().A).abs().max().item(), rel=1e-5)
    assert {id(row) for row in radius.record.rows} == {id(p) for p in layer.parameters()}
    assert (radius.width, alpha.width, alpha.id, alpha.path) == (1, 1, "0.alpha", "0.alpha")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_lost_certificate_is_recorded_as_nan_and_raises_no_exception(value: float) -> None:
    layer = made(5)
    with torch.no_grad():
        layer.C[0, 2, 2] = value
    y = layer(torch.randn(2, 9, 5))
    y.sum().backward()
    step, _ = layer.step(torch.randn(2, 5), layer.initial_state(2))
    assert y.isnan().all()
    assert step.isnan().all()
    assert layer.gates()["decay"].isnan().all()
    measured = layer.measured()
    assert all(values.isnan().all() for values in measured.values()), measured
    assert {kind: len(values) for kind, values in measured.items()} == {
        "true_eigenvalue": 5,
        "true_boundary_distance": 5,
        "certified_gain": 1,
        "measured_gain": 1,
    }
