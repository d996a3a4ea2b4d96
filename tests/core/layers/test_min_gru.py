"""minGRU: the paper's recurrence in every form and at any length, positive states, and a gate that equals the eigenvalue."""

import math

import numpy as np
import pytest
import torch

from stablessm_core.layers.building import Surroundings, build_layer
from stablessm_core.layers.min_gru import MinGRU
from stablessm_core.spec.layers.min_gru import MinGru
from stablessm_core.watch.watchable import watched_records


def make(d_model: int = 5, expand: int = 1, **options: str) -> MinGRU:
    torch.manual_seed(0)
    return MinGRU(d_model, expand, **options)


def x_of(length: int, d_model: int = 5, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, length, d_model, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def stepped(layer: MinGRU, x: torch.Tensor) -> torch.Tensor:
    state, outputs = layer.initial_state(len(x)), []
    for x_t in x.unbind(1):
        y, state = layer.step(x_t, state)
        outputs.append(y)
    return torch.stack(outputs, 1)


def states_of_the_paper(layer: MinGRU, x: torch.Tensor) -> torch.Tensor:
    z = torch.sigmoid(x @ layer.gate.weight.T)
    v = x @ layer.candidate.weight.T
    candidate = torch.where(v >= 0, v + 0.5, torch.sigmoid(v))
    h, states = torch.zeros_like(z[:, 0]), []
    for t in range(x.shape[1]):
        h = (1 - z[:, t]) * h + z[:, t] * candidate[:, t]
        states.append(h)
    return torch.stack(states, 1)


def scan_of_logarithms(layer: MinGRU, x: torch.Tensor) -> torch.Tensor:
    """The published scan in logarithms, which sums terms that grow with the length."""
    k, v = layer.gate(x), layer.candidate(x)
    faded = torch.nn.functional.logsigmoid(-k).cumsum(1)
    driven = torch.nn.functional.logsigmoid(k) + torch.where(v >= 0, v + 0.5, torch.sigmoid(v)).log()
    return (faded + (driven - faded).logcumsumexp(1)).exp()


def test_the_layer_matches_the_papers_recurrence_and_its_log_space_scan() -> None:
    layer, x = make().double(), x_of(40)
    torch.testing.assert_close(layer(x), states_of_the_paper(layer, x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(layer(x), scan_of_logarithms(layer, x), rtol=1e-10, atol=1e-12)
    assert (layer(x) > 0).all()


def test_a_long_sequence_keeps_float32_accuracy_unlike_the_log_space_scan() -> None:
    layer, x = make(), x_of(4096)
    exact = make().double()(x)
    torch.testing.assert_close(layer(x.float()).double(), exact, rtol=1e-5, atol=1e-6)
    assert (scan_of_logarithms(layer, x.float()).double() - exact).abs().max() > 1e-4


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize(("d_model", "expand", "length"), [(1, 1, 7), (5, 2, 1), (5, 1, 2), (7, 3, 63), (3, 1, 4097)])
@pytest.mark.slow
def test_single_steps_match_the_scan(d_model: int, expand: int, length: int, backend: str) -> None:
    layer, x = make(d_model, expand, scan_backend=backend).double(), x_of(length, d_model)
    with torch.no_grad():
        torch.testing.assert_close(stepped(layer, x), layer(x), rtol=1e-10, atol=1e-10)


def test_gradients_are_right() -> None:
    layer, x = make(3, 2).double(), x_of(7, 3, 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: layer(x), (x, *layer.parameters()))


@pytest.mark.parametrize(("expand", "count"), [(1, 2 * 64), (2, 6 * 64)])
def test_the_section_builds_a_layer_with_the_public_number_of_parameters(expand: int, count: int) -> None:
    section = MinGru(expand=expand)
    assert section.map_time is section.initial_range(8) is None
    layers = []
    for _ in range(2):
        torch.manual_seed(3)
        layers.append(build_layer(section, Surroundings(8, None)))
    assert section.parameters(8) == sum(p.numel() for p in layers[0].parameters()) == count
    assert section.eigenvalues(8) == watched_records(layers[0])[0].width
    for a, b in zip(*(layer.parameters() for layer in layers), strict=True):
        assert torch.equal(a, b)


def test_the_decay_of_the_gate_is_watched_together_with_its_weight_rows() -> None:
    layer, x = make(5, 2).double(), x_of(9)
    (record,) = watched_records(layer)
    assert (record.form.map, record.width, record.path, record.record.gates) == ("gate", 10, "gate.weight", 10)
    layer(x)
    left = (1 - torch.sigmoid(layer.gate(x))).detach()
    lowest, mean, highest = layer.gates()["decay"]
    torch.testing.assert_close(torch.exp(-lowest), left.amax((0, 1)))
    torch.testing.assert_close(torch.exp(-highest), left.amin((0, 1)))
    effective = record.form.derive("eigenvalue", {"gate_mean": mean.numpy()})
    np.testing.assert_allclose(effective, left.log().mean((0, 1)).exp().numpy(), rtol=1e-10)
    assert layer.last_state is not None
    torch.testing.assert_close(layer.last_state, states_of_the_paper(layer, x)[:, -1].detach())


def test_the_recorded_decay_of_a_fully_closed_gate_is_finite() -> None:
    layer = make(1)
    with torch.no_grad():
        layer.gate.weight.fill_(100.0)
    layer(torch.tensor([[[1.0], [-1.0]]]))
    assert layer.gates()["decay"].flatten().tolist() == pytest.approx([math.exp(-100), 50.0, 100.0])


def test_the_recurrence_stays_in_float32_under_autocast() -> None:
    layer, x = make(16, 2), x_of(64, 16).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, _ = layer(x), layer.step(x[:, 0], layer.initial_state(2))
    assert layer.last_state is not None
    assert layer.last_state.dtype == layer.gates()["decay"].dtype == torch.float32
    torch.testing.assert_close(y.float(), layer(x), rtol=0.1, atol=0.03)
