"""GLA: one result in every form, the published layer and initial weights, correct gates."""

import pytest
import torch
from pydantic_core import PydanticCustomError
from torch.nn import functional

from stablessm_core.layers.building import Surroundings, build_layer
from stablessm_core.layers.gla import GatedLinearAttention
from stablessm_core.spec.layers.gla import Gla
from stablessm_core.watch.watchable import watched_records


def make(d_model: int = 6, n_heads: int = 2, seed: int = 0, **options: object) -> GatedLinearAttention:
    torch.manual_seed(seed)
    return GatedLinearAttention(d_model, n_heads, **options)


def x_of(length: int, d_model: int = 6, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, length, d_model, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.mark.parametrize(
    ("d_model", "n_heads", "length"), [(1, 1, 7), (5, 1, 1), (6, 2, 2), (7, 7, 70), (12, 2, 64), (3, 1, 4097)]
)
@pytest.mark.slow
def test_single_steps_match_every_form_of_the_recurrence(d_model: int, n_heads: int, length: int) -> None:
    layer, x = make(d_model, n_heads).double(), 5 * x_of(length, d_model)
    with torch.no_grad():
        S, outputs = layer.initial_state(2), []
        for x_t in x.unbind(1):
            y, S = layer.step(x_t, S)
            outputs.append(y)
        for layer.scan_backend in ("auto", "reference"):
            torch.testing.assert_close(layer(x), torch.stack(outputs, 1), rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(layer.last_state, S.abs().amax(3).flatten(1), rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_gradients_are_right() -> None:
    layer, x = make(4).double(), x_of(7, 4, 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: layer(x), (x, *layer.parameters()))


def test_the_layer_computes_the_published_recurrence() -> None:
    layer, x = make().double(), x_of(9)
    q, k, v = ((x @ projection.weight.T).unflatten(-1, (2, -1)) for projection in (layer.q_proj, layer.k_proj, layer.v_proj))
    z = x @ layer.gate_in.weight.T @ layer.gate_out.weight.T + layer.gate_out.bias
    alpha = (z.sigmoid() ** (1 / 16)).unflatten(-1, (2, -1))
    S, outputs = torch.zeros(2, 2, 2, 3, dtype=torch.float64), []
    for t in range(9):
        S = alpha[:, t, :, :, None] * S + k[:, t, :, :, None] * v[:, t, :, None]
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], S) / 2**0.5)
    o = torch.stack(outputs, 1)
    o = o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    o = o.flatten(2) * functional.silu(x @ layer.g_proj.weight.T)
    torch.testing.assert_close(layer(x), o @ layer.o_proj.weight.T, rtol=1e-10, atol=1e-10)


def test_the_layer_has_as_many_parameters_as_the_public_implementation() -> None:
    assert Gla().parameters(64) == 17968
    layers = []
    for _ in range(2):
        torch.manual_seed(3)
        layers.append(build_layer(Gla(n_heads=3), Surroundings(9, None)))
    assert sum(p.numel() for p in layers[0].parameters()) == Gla(n_heads=3).parameters(9)
    for a, b in zip(*(layer.parameters() for layer in layers), strict=True):
        assert torch.equal(a, b)


def test_initial_weights_follow_the_published_initialization() -> None:
    layer = make(64, 4)
    fans = ((layer.q_proj, 2**-2.5, 96), (layer.gate_in, 2**-2.5, 80), (layer.gate_out, 2**-2.5, 48), (layer.o_proj, 0.5, 128))
    for projection, gain, fan in fans:
        bound = gain * (6 / fan) ** 0.5
        assert 0.95 * bound < projection.weight.abs().max().item() <= bound
    layer(torch.zeros(1, 4, 64))
    assert torch.exp(-layer.gates()["decay"][1]).mean().item() == pytest.approx(0.957603, abs=2e-3)  # sigmoid(0)^(1/16)


def test_widths_that_do_not_divide_evenly_are_refused() -> None:
    Gla().check(64)
    with pytest.raises(PydanticCustomError, match="is 4; allowed: a divisor of d_model = 6"):
        Gla().check(6)
    with pytest.raises(ValueError, match="must divide d_model = 6"):
        GatedLinearAttention(6)


def test_the_decay_of_a_key_channel_is_watched_together_with_the_weights_that_decide_it() -> None:
    layer, x = make().double(), x_of(9)
    (record,) = watched_records(layer)
    assert (record.form.data["map"], record.width, record.record.gates, record.path) == ("gate", 4, 4, "gate_out.weight")
    assert [tuple(row.shape) for row in record.record.rows] == [(4, 16), (4,)]
    layer(x)
    decay = -functional.logsigmoid(layer.gate_out(layer.gate_in(x))).detach() / 16
    wanted = torch.stack([decay.amin((0, 1)), decay.mean((0, 1)), decay.amax((0, 1))])
    torch.testing.assert_close(layer.gates()["decay"], wanted)
    derived = record.form.derive("eigenvalue", {"gate_mean": layer.gates()["decay"][1].numpy(), "weight": None})
    torch.testing.assert_close(torch.from_numpy(derived), torch.exp(-decay).log().mean((0, 1)).exp())


def test_fully_closed_and_fully_open_gates_give_no_nan() -> None:
    layer, x = make(), x_of(70).float()
    for bias in (-1e4, 1e4):
        with torch.no_grad():
            layer.gate_out.bias.fill_(bias)
        y = layer(x)
        assert y.isfinite().all()
        assert all(g.isfinite().all() for g in torch.autograd.grad(y.sum(), list(layer.parameters())))


def test_the_recurrence_stays_in_float32_under_autocast() -> None:
    layer, x = make(16, 4), x_of(64, 16).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, (_, S) = layer(x), layer.step(x[:, 0], layer.initial_state(2))
    assert layer.last_state is not None
    assert S.dtype == layer.last_state.dtype == layer.gates()["decay"].dtype == torch.float32
    torch.testing.assert_close(y.float(), layer(x), rtol=0.1, atol=0.05)
