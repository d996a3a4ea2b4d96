"""RetNet: one result in every form, the published layer, and decays that are fixed and recorded as fixed."""

import copy
import math

import pytest
import torch
from pydantic_core import PydanticCustomError
from torch.nn import functional

from stablessm_core.layers.building import Surroundings, build_layer
from stablessm_core.layers.hyena import HyenaMixer
from stablessm_core.layers.parts.rotation import rotated
from stablessm_core.layers.retnet import MultiScaleRetention
from stablessm_core.spec.layers.retnet import RetNet
from stablessm_core.watch.watchable import watched_records
from tests.core.layers.alerts import nonfinite_alerts


def make(d_model: int = 6, n_heads: int = 2, seed: int = 0, **options: object) -> MultiScaleRetention:
    torch.manual_seed(seed)
    return MultiScaleRetention(d_model, n_heads, **options)


def x_of(length: int, d_model: int = 6, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, length, d_model, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.mark.parametrize(
    ("d_model", "n_heads", "length"), [(1, 1, 7), (5, 1, 1), (6, 2, 2), (7, 7, 70), (12, 2, 64), (3, 1, 4097)]
)
@pytest.mark.slow
def test_single_steps_match_every_form_of_the_recurrence(d_model: int, n_heads: int, length: int) -> None:
    layer, x = make(d_model, n_heads).double(), x_of(length, d_model)
    with torch.no_grad():
        state, outputs = layer.initial_state(2), []
        for x_t in x.unbind(1):
            y, state = layer.step(x_t, state)
            outputs.append(y)
        for layer.scan_backend in ("auto", "reference"):
            torch.testing.assert_close(layer(x), torch.stack(outputs, 1), rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(layer.last_state, state[0].abs().amax((2, 3)), rtol=1e-10, atol=1e-10)


def test_gradients_are_right() -> None:
    layer, x = make(4).double(), x_of(7, 4, 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: layer(x), (x, *layer.parameters()))


def test_the_layer_computes_the_published_retention() -> None:
    """Computes the layer as attention, with weights gamma^(t-s) (q_t . k_s) for rotated queries and keys."""
    layer, x = make().double(), x_of(9)
    position = torch.arange(9)
    q, k, v = ((x @ projection.weight.T).unflatten(-1, (2, -1)) for projection in (layer.q_proj, layer.k_proj, layer.v_proj))
    q, k = rotated(q, position), rotated(k, position)
    distance = position[:, None] - position
    gamma = torch.tensor([1 - 2**-5, 1 - 2**-6]).double()
    decay = torch.where(distance >= 0, gamma[:, None, None] ** distance, 0.0)
    o = torch.einsum("bthk,bshk,hts,bshv->bthv", q, k, decay, v) / 3**0.5
    o = o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    o = o.flatten(2) * functional.silu(x @ layer.g_proj.weight.T)
    torch.testing.assert_close(layer(x), o @ layer.o_proj.weight.T, rtol=1e-10, atol=1e-12)


def test_the_decays_are_exact_in_the_dtype_to_which_the_layer_is_converted() -> None:
    layer = make(d_model=8, n_heads=8)
    exact = [-math.log1p(-(2.0 ** (-5 - head))) for head in range(8)]
    assert layer.decay.tolist() == torch.tensor(exact).tolist()
    for converted in (layer.double(), layer.float().double(), copy.deepcopy(layer).to("cpu")):
        assert converted.decay.tolist() == pytest.approx(exact, rel=1e-15, abs=0)
    assert layer.float().decay.tolist() == torch.tensor(exact).tolist()


@pytest.mark.parametrize("place", ["ssm", "ssm.inner"])
def test_a_non_finite_state_is_named_by_the_layers_place_in_the_model(place: str) -> None:
    layer = make(d_model=8)
    layer = layer if place == "ssm" else HyenaMixer(8, layer)
    fatal = nonfinite_alerts(layer, torch.full((2, 9, 8), 3e38))[0]
    assert (fatal.kind, fatal.tensor, fatal.layer, fatal.eigenvalue) == ("nonfinite_state", f"{place}.state", 0, 1)


def test_products_of_rotated_queries_and_keys_depend_only_on_their_distance() -> None:
    q, k = torch.randn(2, 1, 3, 10, dtype=torch.float64)
    at = [(5, 2), (1003, 1000), (10**9 + 3, 10**9)]
    products = [(rotated(q, torch.tensor([t])) * rotated(k, torch.tensor([s]))).sum(-1) for t, s in at]
    torch.testing.assert_close(products[1], products[0], rtol=0, atol=1e-10)
    torch.testing.assert_close(products[2], products[0], rtol=0, atol=1e-5)
    odd = torch.randn(4, 2, 5)
    turned = rotated(odd, torch.arange(4))
    assert torch.equal(turned[..., 4], odd[..., 4])
    torch.testing.assert_close(turned.norm(dim=-1), odd.norm(dim=-1))
    first = rotated(torch.tensor([[[1.0, 0.0, 0.0, 0.0]]]), torch.tensor([0.5]))
    torch.testing.assert_close(first.flatten(), torch.tensor([0.5]).cos().item() * torch.eye(4)[0] + torch.eye(4)[2] * 0.479426)


def test_the_layer_has_as_many_parameters_as_the_public_implementation() -> None:
    assert RetNet().parameters(64) == 32800
    layers = []
    for _ in range(2):
        torch.manual_seed(3)
        layers.append(build_layer(RetNet(n_heads=2, expand=3), Surroundings(10, None)))
    assert sum(p.numel() for p in layers[0].parameters()) == RetNet(n_heads=2, expand=3).parameters(10)
    for a, b in zip(*(layer.parameters() for layer in layers), strict=True):
        assert torch.equal(a, b)


def test_initial_weights_follow_the_published_initialization() -> None:
    layer = make(64, 4)
    for projection, gain, fan in ((layer.q_proj, 2**-2.5, 128), (layer.v_proj, 2**-2.5, 192), (layer.o_proj, 1, 192)):
        bound = gain * (6 / fan) ** 0.5
        assert 0.99 * bound < projection.weight.abs().max().item() <= bound


def test_widths_that_do_not_divide_evenly_are_refused() -> None:
    RetNet().check(64)
    with pytest.raises(PydanticCustomError, match="is 4; allowed: a divisor of d_model = 6"):
        RetNet().check(6)
    with pytest.raises(ValueError, match="must divide d_model = 6"):
        MultiScaleRetention(6)


def test_the_decays_are_recorded_as_fixed_eigenvalues() -> None:
    layer = make(64, 8)
    (record,) = watched_records(layer)
    assert (record.width, record.record.parameters, record.form.data["map"]) == (8, [], "fixed")
    weight = record.record.weight
    assert weight is not None
    eigenvalues = record.form.derive("eigenvalue", {"weight": weight.double().numpy()})
    assert eigenvalues.tolist() == pytest.approx([1 - 2.0 ** -(5 + h) for h in range(8)], rel=1e-7)
    assert (eigenvalues[0], eigenvalues[-1]) == pytest.approx((0.96875, 1 - 2**-12), rel=1e-7)
    layer(x_of(5, 64).float())
    assert layer.gates() == {}


def test_the_recurrence_stays_in_float32_under_autocast() -> None:
    layer, x = make(16, 4), x_of(64, 16).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, (_, state) = layer(x), layer.step(x[:, 0], layer.initial_state(2))
    assert layer.last_state is not None
    assert state[0].dtype == layer.last_state.dtype == torch.float32
    torch.testing.assert_close(y.float(), layer(x), rtol=0.1, atol=0.05)
