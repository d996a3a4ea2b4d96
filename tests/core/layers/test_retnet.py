"""RetNet: one result in every form, the published layer, decays that are fixed and watched as such."""

import pytest
import torch
from pydantic_core import PydanticCustomError
from torch.nn import functional

from stablessm_core.layers.building import Surroundings, build_layer
from stablessm_core.layers.retnet.layer import MultiScaleRetention
from stablessm_core.layers.retnet.section import RetNet
from stablessm_core.layers.rotation import rotated
from stablessm_core.telemetry.watch import watched_records


def make(d_model: int = 6, n_heads: int = 2, seed: int = 0, **options: object) -> MultiScaleRetention:
    torch.manual_seed(seed)
    return MultiScaleRetention(d_model, n_heads, **options)


def x_of(length: int, d_model: int = 6, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, length, d_model, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.mark.parametrize(
    ("d_model", "n_heads", "length"), [(1, 1, 7), (5, 1, 1), (6, 2, 2), (7, 7, 70), (12, 2, 64), (3, 1, 4097)]
)
def test_step_gives_what_every_form_of_the_recurrence_gives(d_model: int, n_heads: int, length: int) -> None:
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


def test_the_layer_is_the_published_one() -> None:
    """As attention: weights gamma^(t-s) (q_t . k_s) of turned queries and keys."""
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
    torch.testing.assert_close(layer(x), o @ layer.o_proj.weight.T, rtol=1e-6, atol=1e-9)  # its decays are float32


def test_products_of_turned_vectors_depend_on_the_distance_alone() -> None:
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


def test_it_has_as_many_parameters_as_the_public_one() -> None:
    assert RetNet().parameters(64) == 32800
    layers = []
    for _ in range(2):
        torch.manual_seed(3)
        layers.append(build_layer(RetNet(n_heads=2, expand=3), Surroundings(10, None)))
    assert sum(p.numel() for p in layers[0].parameters()) == RetNet(n_heads=2, expand=3).parameters(10)
    for a, b in zip(*(layer.parameters() for layer in layers), strict=True):
        assert torch.equal(a, b)


def test_it_starts_as_published() -> None:
    layer = make(64, 4)
    for projection, gain, fan in ((layer.q_proj, 2**-2.5, 128), (layer.v_proj, 2**-2.5, 192), (layer.o_proj, 1, 192)):
        bound = gain * (6 / fan) ** 0.5
        assert 0.99 * bound < projection.weight.abs().max().item() <= bound


def test_widths_that_do_not_divide_are_refused() -> None:
    RetNet().check(64)
    with pytest.raises(PydanticCustomError, match="is 4; allowed: a divisor of d_model = 6"):
        RetNet().check(6)
    with pytest.raises(ValueError, match="must divide d_model = 6"):
        MultiScaleRetention(6)


def test_its_decays_are_watched_as_fixed() -> None:
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
