"""HGRN: its recurrence in every form, the published initial lower bounds, and a forget gate that equals the eigenvalue."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from stablessm_core.layers.building import Surroundings, build_layer
from stablessm_core.layers.hgrn import HGRN
from stablessm_core.spec.layers.hgrn import Hgrn
from stablessm_core.watch.watchable import watched_records


def make(d_model: int = 5, expand: int = 1, index: int = 1, n_layers: int = 3, **options: str) -> HGRN:
    torch.manual_seed(0)
    return HGRN(d_model, expand, index=index, n_layers=n_layers, **options)


def x_of(length: int, d_model: int = 5, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, length, d_model, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def stepped(layer: HGRN, x: torch.Tensor) -> torch.Tensor:
    state, outputs = layer.initial_state(len(x)), []
    for x_t in x.unbind(1):
        y, state = layer.step(x_t, state)
        outputs.append(y)
    return torch.stack(outputs, 1)


def forget_gate(layer: HGRN, x: torch.Tensor, bound: float) -> torch.Tensor:
    return bound + (1 - bound) * torch.sigmoid(x @ layer.forget.weight.T)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_layer_computes_the_public_recurrence_inside_its_block(index: int) -> None:
    layer, x = make(index=index).double(), x_of(40)
    f = forget_gate(layer, x, index / 3)
    driven = (1 - f) * functional.silu(layer.input(x))
    h, outputs = torch.zeros_like(f[:, 0]), []
    for t in range(x.shape[1]):
        h = f[:, t] * h + driven[:, t]
        normed = h / (h.square().mean(-1, keepdim=True) + 1e-6).sqrt() * layer.norm.weight
        outputs.append(layer.output(normed * functional.silu(layer.gate(x[:, t]))))
    torch.testing.assert_close(layer(x), torch.stack(outputs, 1), rtol=1e-10, atol=1e-12)


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


@pytest.mark.parametrize("n_layers", [1, 2, 5])
def test_lower_bounds_start_as_the_cumulative_softmax_over_layers(n_layers: int) -> None:
    softmax = torch.zeros(n_layers, 5).softmax(0)
    published = softmax.cumsum(0) - softmax[0]
    for index in range(n_layers):
        torch.testing.assert_close(make(index=index, n_layers=n_layers).lower_bound().detach(), published[index])


def test_a_lower_bound_is_the_total_softmax_weight_of_the_preceding_layers() -> None:
    layer = make(index=2, n_layers=5)
    with torch.no_grad():
        layer.gamma.copy_(torch.linspace(-3, 3, 5))
    weights = torch.stack([layer.gamma, layer.gamma, *[torch.zeros(5)] * 3]).softmax(0)
    torch.testing.assert_close(layer.lower_bound(), weights[:2].sum(0))


def test_a_layer_index_beyond_the_last_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="index is 3 of 3 layers"):
        make(index=3)


@pytest.mark.parametrize("expand", [1, 2])
@pytest.mark.parametrize("index", [0, 1])
def test_the_section_builds_a_layer_with_the_public_number_of_parameters(index: int, expand: int) -> None:
    section = Hgrn(expand=expand)
    assert section.map_time is section.initial_range(8) is None
    layers = []
    for _ in range(2):
        torch.manual_seed(3)
        layers.append(build_layer(section, Surroundings(8, None, index=index, n_layers=2)))
    public = expand * (4 * 64 + 8)  # without the layer's row of lower bounds, which belongs to the model in fla
    assert section.parameters(8) == sum(p.numel() for p in layers[0].parameters()) == public + expand * 8
    assert section.eigenvalues(8) == watched_records(layers[0])[0].width
    for a, b in zip(*(layer.parameters() for layer in layers), strict=True):
        assert torch.equal(a, b)


def test_the_records_watch_the_weight_rows_of_the_forget_gate_and_its_lower_bound() -> None:
    layer, x = make(5, 2).double(), x_of(9)
    first, second = watched_records(layer)
    assert (first.form.map, first.width, first.path, first.record.gates) == ("gate", 10, "forget.weight", 10)
    assert (second.id, second.path, second.record.gradient) == ("0.lower_bound", "gamma", True)
    assert len(watched_records(make(index=0))) == 1
    layer(x)
    f = forget_gate(layer, x, 1 / 3).detach()
    lowest, mean, highest = layer.gates()["decay"]
    torch.testing.assert_close(torch.exp(-lowest), f.amax((0, 1)))
    torch.testing.assert_close(torch.exp(-highest), f.amin((0, 1)))
    effective = first.form.derive("eigenvalue", {"gate_mean": mean.numpy()})
    np.testing.assert_allclose(effective, f.log().mean((0, 1)).exp().numpy(), rtol=1e-10)
    state = layer.initial_state(2)
    for x_t in x.unbind(1):
        _, state = layer.step(x_t, state)
    assert layer.last_state is not None
    torch.testing.assert_close(layer.last_state, state.detach(), rtol=1e-10, atol=1e-12)


def test_the_decay_of_a_nearly_fully_open_gate_has_no_cancellation_error() -> None:
    layer = make(1)
    with torch.no_grad():
        layer.forget.weight.fill_(30.0)
    layer(torch.ones(1, 3, 1))
    assert layer.gates()["decay"].flatten().tolist() == pytest.approx([2 / 3 * np.exp(-30)] * 3, rel=1e-5)


def test_the_recurrence_stays_in_float32_under_autocast() -> None:
    layer, x = make(16, 2), x_of(64, 16).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, _ = layer(x), layer.step(x[:, 0], layer.initial_state(2))
    assert layer.last_state is not None
    assert layer.last_state.dtype == layer.gates()["decay"].dtype == torch.float32
    torch.testing.assert_close(y.float(), layer(x), rtol=0.1, atol=0.05)
