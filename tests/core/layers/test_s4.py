"""S4: one recurrence in four forms, initialised as HiPPO-LegS; its diagonal part is recorded, its true eigenvalues are
measured."""

from typing import Any

import pytest
import torch
from torch import Tensor

from stablessm_core.layers import S4
from stablessm_core.layers.building import Surroundings, build_layer
from stablessm_core.layers.parts.hippo import legs
from stablessm_core.layers.parts.s4_kernel import (
    System,
    bilinear_step,
    both,
    final_state,
    kernel_by_cauchy,
    kernel_by_powers,
    real_matrix,
)
from stablessm_core.maps import MAPS
from stablessm_core.reparameterization import get_reparameterization
from stablessm_core.spec.layers.s4 import S4 as Section
from stablessm_core.watch.watchable import watched_records

FORMS = {"cauchy": kernel_by_cauchy, "powers": kernel_by_powers}


def made(d_model: int = 6, map_: str = "exp", b: float = 0.5, **options: Any) -> S4:
    torch.manual_seed(0)
    section = Section.model_validate({"d_state": 8, **options})
    layer = build_layer(section, Surroundings(d_model, get_reparameterization(map_, time="continuous", b=b)))
    assert isinstance(layer, S4)
    return layer


def hippo(d_state: int, dt: Tensor, C: Tensor | None = None) -> System:
    frequencies, P, B = (values.expand(len(dt), -1) for values in legs(d_state))
    Lambda = torch.complex(torch.full_like(frequencies, -0.5), frequencies)
    if C is None:
        C = torch.randn(Lambda.shape, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
    return System(Lambda, P.to(C.dtype), B.to(C.dtype), C, dt)


def by_steps(system: System, length: int) -> Tensor:
    step, h, kernel = bilinear_step(system), torch.zeros_like(system.Lambda), []
    for t in range(length):
        h = step(h, torch.full_like(system.dt, float(t == 0)))
        kernel.append(both(system.C, h))
    return torch.stack(kernel, 1)


@pytest.mark.parametrize("form", FORMS)
def test_the_kernel_of_four_states_matches_known_values(form: str) -> None:
    n = torch.arange(4, dtype=torch.float64)
    p = (n + 0.5).sqrt()
    lower = (-2 * p[:, None] * p).tril(-1) - torch.diag(n + 1)
    frequencies, basis = torch.linalg.eigh(-1j * (lower + p[:, None] * p + 0.5 * torch.eye(4)))
    above = frequencies > 0
    P, B = (basis.mH @ values.to(basis.dtype) for values in (p, (2 * n + 1).sqrt()))
    C = torch.sin(n + 1).to(basis.dtype) @ basis
    parts = (torch.complex(torch.full_like(frequencies, -0.5), frequencies), P, B, C)
    system = System(*(values[above][None] for values in parts), torch.tensor([0.1], dtype=torch.float64))
    kernel = FORMS[form](system, 16)[0]
    wanted = torch.tensor([0.13166061, 0.20048748, 0.19812450, 0.16482931, -0.01818423], dtype=torch.float64)
    torch.testing.assert_close(kernel[[0, 1, 2, 3, 15]], wanted, rtol=0, atol=1e-8)


@pytest.mark.parametrize("length", [1, 2, 7, 63, 64, 257, 1000])
def test_the_cauchy_form_the_power_form_and_single_steps_give_the_same_kernel(length: int) -> None:
    system = hippo(64, torch.tensor([1e-3, 0.03, 0.1], dtype=torch.float64))
    wanted = by_steps(system, length)
    for form in FORMS.values():
        torch.testing.assert_close(form(system, length), wanted, rtol=1e-10, atol=1e-10)


def test_all_kernel_forms_agree_at_length_4097_and_in_float32() -> None:
    system = hippo(16, torch.tensor([1e-3, 0.1], dtype=torch.float64))
    cauchy, powers = (form(system, 4097) for form in FORMS.values())
    torch.testing.assert_close(cauchy, powers, rtol=1e-10, atol=1e-10)
    single = System(*(values.to(torch.complex64 if values.is_complex() else torch.float32) for values in system))
    for form in FORMS.values():
        torch.testing.assert_close(form(single, 4097).double(), powers, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("rate", [0.0, -1e-6, 0.5, 2.0])
def test_the_power_form_gives_the_right_kernel_even_if_modes_grow(rate: float) -> None:
    system = hippo(64, torch.tensor([0.01, 0.1], dtype=torch.float64))
    system = system._replace(Lambda=torch.complex(torch.full_like(system.Lambda.real, rate), system.Lambda.imag))
    wanted = by_steps(system, 200)
    largest = wanted.abs().amax(1, keepdim=True)
    torch.testing.assert_close(kernel_by_powers(system, 200) / largest, wanted / largest, rtol=1e-10, atol=1e-10)


def test_the_step_applies_the_bilinear_rule_to_the_whole_matrix() -> None:
    system = hippo(6, torch.tensor([0.05, 0.3], dtype=torch.float64))
    Lambda, P, B, _, dt = system
    A = real_matrix(Lambda, P, P.conj())
    unit, half = torch.eye(6, dtype=torch.float64), dt[:, None, None] / 2 * A
    step = bilinear_step(system)
    torch.testing.assert_close(real_matrix(*step[:3]), torch.linalg.solve(unit - half, unit + half))
    column = torch.cat([B.real, B.imag], -1)[..., None] * dt[:, None, None]
    torch.testing.assert_close(torch.cat([step.b.real, step.b.imag], -1)[..., None], torch.linalg.solve(unit - half, column))


@pytest.mark.parametrize("length", [1, 2, 9, 130])
def test_the_final_state_matches_the_state_after_single_steps(length: int) -> None:
    system = hippo(10, torch.tensor([0.05, 0.3, 0.01], dtype=torch.float64))
    x = torch.randn(2, length, 3, dtype=torch.float64)
    step, h = bilinear_step(system), torch.zeros(2, 3, 5, dtype=torch.complex128)
    for t in range(length):
        h = step(h, x[:, t])
    torch.testing.assert_close(final_state(step, x), h, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kernel", FORMS)
@pytest.mark.parametrize(("length", "d_model"), [(1, 3), (2, 1), (131, 5)])
def test_single_steps_give_the_same_output_as_the_convolution(kernel: str, length: int, d_model: int) -> None:
    layer = made(d_model, kernel=kernel).double()
    x = torch.randn(2, length, d_model, dtype=torch.float64)
    state, outputs = layer.initial_state(2), []
    for t in range(length):
        y, state = layer.step(x[:, t], state)
        outputs.append(y)
    torch.testing.assert_close(torch.stack(outputs, 1), layer(x), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(layer.last_state, state.abs().flatten(1).detach(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kernel", FORMS)
@pytest.mark.slow
def test_gradients_are_exact(kernel: str) -> None:
    layer = made(2, d_state=4, kernel=kernel).double()
    x = torch.randn(1, 7, 2, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in layer.named_parameters()]

    def of(x: Tensor, *parameters: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))
        return y

    assert torch.autograd.gradcheck(of, (x, *layer.parameters()))


def test_a_new_layer_computes_the_same_function_with_every_map() -> None:
    x = torch.randn(2, 40, 6, generator=torch.Generator().manual_seed(1))
    outputs = [made(map_=name)(x) for name, map_ in MAPS.items() if "continuous" in map_.forms]
    assert len(outputs) >= 6
    for output in outputs[1:]:
        torch.testing.assert_close(output, outputs[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("d_model", "d_state"), [(64, 64), (7, 2), (1, 10)])
def test_parameters_are_counted_exactly(d_model: int, d_state: int) -> None:
    section = Section(d_state=d_state)
    layer = made(d_model, d_state=d_state)
    counts = {name: p.numel() for name, p in layer.named_parameters()}
    assert section.parameters(d_model) == sum(counts.values())
    assert counts["w"] == counts["omega"] == section.eigenvalues(d_model) == d_model * d_state // 2
    assert counts["P"] + counts["B"] + counts["C"] == 3 * d_model * d_state
    if d_model == 64:
        assert section.parameters(64) == 24832  # as many as the authors' block has


def test_the_diagonal_part_is_recorded_with_the_bilinear_rule() -> None:
    layer = made(3)
    (record,) = watched_records(layer)
    form = record.form
    assert (form.map, form.time, form.rule, form.dt, form.phase) == ("exp", "continuous", "bilinear", "dt", "imaginary")
    dt = layer.log_dt.detach().exp().repeat_interleave(4)
    numbers = {"weight": layer.w, "dt": dt, "phase_weight": layer.omega}
    z = dt.double() * torch.complex(-layer.w.detach().exp(), layer.omega.detach()).flatten().to(torch.complex128)
    wanted = (1 + z / 2) / (1 - z / 2)
    derived = {
        kind: form.derive(kind, {k: v.detach().double().flatten().numpy() for k, v in numbers.items()}) for kind in form.derived
    }
    torch.testing.assert_close(torch.from_numpy(derived["eigenvalue"]), wanted.abs(), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(torch.from_numpy(derived["phase"]), wanted.angle(), rtol=1e-6, atol=1e-6)


def test_the_measured_eigenvalues_start_at_the_eigenvalues_of_hippo() -> None:
    layer = made(2, dt_min=0.1, dt_max=0.1)
    measured = layer.measured()
    k = torch.arange(1, 9, dtype=torch.float32)
    start = (1 - k * 0.05) / (1 + k * 0.05)
    assert start[:4].tolist() == pytest.approx([0.904762, 0.818182, 0.739130, 0.666667], abs=1e-6)
    torch.testing.assert_close(measured["true_eigenvalue"], start.repeat(2), rtol=0, atol=1e-3)  # the weights are float32
    assert {kind: (values.shape, values.dtype) for kind, values in measured.items()} == {
        "true_eigenvalue": ((16,), torch.float32),
        "true_boundary_distance": ((16,), torch.float32),
    }


def test_the_measured_eigenvalues_match_the_recurrence() -> None:
    layer = made(3).double()
    with torch.no_grad():
        layer.P.add_(torch.randn_like(layer.P))
        layer.w.add_(0.3 * torch.randn_like(layer.w))
    system = layer._system()
    moduli = torch.linalg.eigvals(real_matrix(*bilinear_step(system)[:3])).abs().sort(descending=True).values
    measured = layer.measured()
    torch.testing.assert_close(measured["true_eigenvalue"], moduli.flatten().float())
    torch.testing.assert_close(measured["true_boundary_distance"], (1 - moduli).flatten().float(), rtol=1e-5, atol=1e-7)
    assert (measured["true_boundary_distance"] > 0).all()  # certified by Re Lambda < 0


def test_a_non_finite_weight_makes_only_the_measurements_of_its_channel_nan() -> None:
    layer = made(3)
    with torch.no_grad():
        layer.P[1, 0, 0] = torch.nan
    values = layer.measured()["true_eigenvalue"].view(3, 8)
    assert values.isnan().all(1).tolist() == [False, True, False]


def test_a_boundary_distance_far_below_float32_epsilon_is_measured_exactly() -> None:
    layer = made(1, d_state=2, dt_min=1e-6, dt_max=1e-6)
    with torch.no_grad():
        layer.P.zero_()
        layer.w.fill_(torch.log(torch.tensor(1e-3)))
    distance = layer.measured()["true_boundary_distance"]
    torch.testing.assert_close(distance, torch.full((2,), 1e-9), rtol=1e-3, atol=0)
