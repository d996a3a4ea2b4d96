"""The Hyena mixer: the published products around its inner layer, whose eigenvalues are recorded."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.layers import HyenaMixer
from stablessm_core.layers.base import WatchedLayer
from stablessm_core.layers.building import Surroundings, build_layer
from stablessm_core.maps import MAPS
from stablessm_core.reparameterization import get_reparameterization
from stablessm_core.spec.layer import LayerSection
from stablessm_core.spec.layers.hyena import INNER, Hyena
from stablessm_core.watch.watchable import watched_records


def made(d_model: int = 6, map_: str = "best", **options: Any) -> HyenaMixer:
    torch.manual_seed(0)
    section = Hyena.model_validate({"inner": {"name": "stable_ssm", "d_state": 5, **options}})
    layer = build_layer(section, Surroundings(d_model, get_reparameterization(map_, time="discrete")))
    assert isinstance(layer, HyenaMixer)
    return layer


def stepped(layer: HyenaMixer, x: Tensor) -> Tensor:
    state, outputs = layer.initial_state(len(x)), []
    for t in range(x.shape[1]):
        y, state = layer.step(x[:, t], state)
        outputs.append(y)
    return torch.stack(outputs, 1)


@pytest.mark.parametrize(("length", "d_model"), [(1, 6), (2, 6), (7, 1), (130, 5)])
def test_single_steps_give_the_same_output_as_the_whole_sequence(length: int, d_model: int) -> None:
    layer = made(d_model).double()
    x = torch.randn(3, length, d_model, dtype=torch.float64)
    torch.testing.assert_close(stepped(layer, x), layer(x), rtol=1e-10, atol=1e-10)


def test_a_long_sequence_gives_finite_outputs() -> None:
    y = made(3)(torch.randn(1, 4097, 3))
    assert y.shape == (1, 4097, 3)
    assert y.isfinite().all()


def test_the_mixer_multiplies_the_inner_layers_input_and_output_by_projections() -> None:
    layer = made().double()
    u = torch.randn(2, 9, 6, dtype=torch.float64)
    projected = u @ layer.project_in.weight.T + layer.project_in.bias
    mixed = torch.zeros_like(projected) + layer.short.bias
    for tap in range(3):
        mixed[:, tap:] += layer.short.weight[:, 2 - tap] * projected[:, : 9 - tap]
    x0, x1, v = mixed[..., :6], mixed[..., 6:12], mixed[..., 12:]
    wanted = (x0 * layer.inner(x1 * v)) @ layer.project_out.weight.T + layer.project_out.bias
    torch.testing.assert_close(layer(u), wanted, rtol=1e-12, atol=1e-12)


def test_with_an_identity_inner_layer_the_mixer_is_the_product_of_its_projections() -> None:
    class IdentityLayer(WatchedLayer):
        def forward(self, x: Tensor) -> Tensor:
            return x

    layer = HyenaMixer(4, IdentityLayer())
    u = torch.randn(2, 5, 4)
    x0, x1, v = layer.short(layer.project_in(u)).split(4, -1)
    torch.testing.assert_close(layer(u), functional.linear(x0 * x1 * v, layer.project_out.weight, layer.project_out.bias))


def test_gradients_are_exact() -> None:
    layer = made(2).double()
    x = torch.randn(2, 7, 2, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in layer.named_parameters()]

    def of(x: Tensor, *parameters: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))
        return y

    assert torch.autograd.gradcheck(of, (x, *layer.parameters()))


def test_the_mixer_records_the_inner_layer() -> None:
    layer = made()
    (record,) = watched_records(nn.Sequential(layer))
    assert record.module is layer
    assert (record.path, record.width) == ("0.inner.w", 5)
    assert record.record.weight is layer.inner.w
    assert layer.gates() == {}
    assert layer.measured() == {}
    assert layer.last_state is None
    layer(torch.randn(4, 8, 6))
    assert layer.last_state is not None
    assert layer.last_state.shape == (4, 5)


def test_a_new_layer_computes_the_same_function_with_every_map() -> None:
    x = torch.randn(2, 30, 6, generator=torch.Generator().manual_seed(1))
    outputs = [made(map_=name)(x) for name, map_ in MAPS.items() if "discrete" in map_.forms]
    assert len(outputs) >= 8
    for output in outputs[1:]:
        torch.testing.assert_close(output, outputs[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("d_model", [1, 6, 7])
def test_parameters_are_counted_exactly(d_model: int) -> None:
    section = Hyena.model_validate({"inner": {"name": "stable_ssm", "d_state": 5}})
    assert section.parameters(d_model) == sum(p.numel() for p in made(d_model).parameters())
    assert section.parameters(d_model) - section.inner.parameters(d_model) == 4 * d_model**2 + 16 * d_model
    assert section.eigenvalues(d_model) == 5


def test_the_section_contains_the_section_of_the_inner_layer() -> None:
    section = Hyena()
    assert section.model_dump() == {
        "name": "hyena",
        "inner": {"name": "stable_ssm", "d_state": 64, "eigenvalue_range": None, "activation": "identity"},
    }
    assert (section.map_time, section.native, section.initial_range(8)) == ("discrete", "best", (0.5, 0.99))
    assert Hyena.model_validate(section.model_dump()) == section
    with pytest.raises(ValidationError, match="inner"):
        Hyena.model_validate({"inner": {"name": "hyena"}})


def test_autocast_keeps_the_inner_layers_state_in_float32() -> None:
    layer = made()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(2, 9, 6)).dtype == torch.bfloat16
    assert layer.last_state is not None
    assert layer.last_state.dtype == torch.float32


@pytest.mark.parametrize("within", INNER)
def test_every_allowed_inner_layer_is_linear(within: type[LayerSection]) -> None:
    torch.manual_seed(0)
    inner = within().model_dump()
    section = Hyena.model_validate({"inner": inner | ({"d_state": 8} if "d_state" in inner else {})})
    map_ = get_reparameterization(section.native, time=section.map_time) if section.map_time else None
    layer = build_layer(section, Surroundings(4, map_)).double()
    assert section.parameters(4) == sum(p.numel() for p in layer.parameters())
    x, z = torch.randn(2, 2, 11, 4, dtype=torch.float64)
    assert isinstance(layer.inner, nn.Module)
    torch.testing.assert_close(layer.inner(x - 2 * z), layer.inner(x) - 2 * layer.inner(z), rtol=1e-10, atol=1e-10)
