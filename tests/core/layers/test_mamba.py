"""Mamba: equal to the public selective scan, one result in every form, the published block, initial weights, correct gates."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from stablessm_core.layers.building import Surroundings, build_layer
from stablessm_core.layers.mamba import MambaBlock
from stablessm_core.layers.parts import selective_scan as scans
from stablessm_core.layers.parts.selective_scan import selective_scan
from stablessm_core.maps import MAPS, formulas
from stablessm_core.reparameterization import get_reparameterization
from stablessm_core.spec.layers.mamba import Mamba
from stablessm_core.watch.watchable import watched_records

CONTINUOUS = [name for name, map_ in MAPS.items() if "continuous" in map_.forms]
REACHING = [name for name in CONTINUOUS if all(formulas(name, "continuous", np).reachable.contains(x) for x in (-2.0, -1.0))]
TRANSITIONS = ["s6", "s7"]


def wave(*shape: int, k: float) -> torch.Tensor:
    return torch.sin(k * torch.arange(1, math.prod(shape) + 1, dtype=torch.float64)).view(shape)


def make(d_model: int = 5, d_state: int = 3, seed: int = 0, **options: object) -> MambaBlock:
    torch.manual_seed(seed)
    return MambaBlock(d_model, d_state, **options)


def x_of(length: int, d_model: int = 5, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, length, d_model, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def stepped(layer: MambaBlock, x: torch.Tensor) -> torch.Tensor:
    state, outputs = layer.initial_state(len(x)), []
    for x_t in x.unbind(1):
        y, state = layer.step(x_t, state)
        outputs.append(y)
    return torch.stack(outputs, 1)


def inputs(transition: str, batch: int = 3, length: int = 7, d_inner: int = 5, d_state: int = 2) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    shared = {"u": normal(batch, length, d_inner), "B": normal(batch, length, d_state), "C": normal(batch, length, d_state)}
    if transition == "s6":
        shared |= {"dt": normal(batch, length, d_inner).exp(), "lambda_": -normal(d_inner, d_state).exp()}
    else:
        shared |= {"lambda_bar": normal(batch, length, d_state).tanh()}
    return {name: x.requires_grad_() for name, x in shared.items()}


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the scan work in pieces of two rows of the batch and three steps."""
    monkeypatch.setattr(scans, "_sizes", lambda batch, states: (2, 3))


@pytest.mark.parametrize("pieces", [True, False])
def test_the_scan_matches_the_public_implementation(pieces: bool) -> None:
    u, dt = wave(1, 2, 4, k=0.7), functional.softplus(wave(1, 2, 4, k=1.3) - 2)
    B, C = wave(1, 3, 4, k=0.9), wave(1, 3, 4, k=0.4)
    u, dt, B, C = (x.transpose(1, 2) for x in (u, dt, B, C))
    rates = -torch.tensor([[1.0, 2.0, 3.0]] * 2, dtype=torch.float64)
    y, _ = selective_scan(dt * u, B, C, dt=dt, lambda_=rates, pieces=pieces)
    y = (y + u)[0].T.flatten()
    wanted = [0.446093, 0.884203, 0.962883, 0.557245, -0.295655, -0.822209, -1.223635, -0.958969]
    assert y.tolist() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("transition", TRANSITIONS)
@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_a_scan_in_pieces_gives_the_same_states_and_gradients_as_a_whole_scan(transition: str, length: int) -> None:
    given = inputs(transition, length=length)
    dy = wave(3, length, 5, k=0.3)
    results = []
    for form in ({"pieces": True}, {"pieces": False}, {"backend": "reference"}):
        y, last = selective_scan(**given, **form)
        assert not last.requires_grad
        results.append((y, last, *torch.autograd.grad((y * dy).sum(), list(given.values()))))
    for other in results[1:]:
        for got, wanted in zip(results[0], other, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("transition", TRANSITIONS)
def test_first_and_second_derivatives_of_the_scan_are_exact(transition: str) -> None:
    given = inputs(transition, batch=1, length=7, d_inner=2)

    def scan(*tensors: torch.Tensor) -> torch.Tensor:
        return selective_scan(**dict(zip(given, tensors, strict=True)), pieces=True)[0]

    assert torch.autograd.gradcheck(scan, tuple(given.values()))
    short = {name: x.detach()[:, :2].requires_grad_() if x.dim() == 3 else x for name, x in given.items()}
    assert torch.autograd.gradgradcheck(scan, tuple(short.values()))


def test_the_backward_pass_keeps_only_a_small_part_of_the_states() -> None:
    given = inputs("s6", batch=2, length=256, d_inner=64, d_state=16)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        selective_scan(**given)
    states = 2 * 256 * 64 * 16
    assert max(x.numel() for x in kept) < states / 10


@pytest.mark.parametrize("transition", TRANSITIONS)
@pytest.mark.parametrize(("d_model", "length"), [(1, 7), (5, 1), (5, 2), (7, 63), (3, 4097)])
@pytest.mark.slow
def test_single_steps_match_every_form_of_the_scan(transition: str, d_model: int, length: int) -> None:
    layer, x = make(d_model, transition=transition).double(), x_of(length, d_model)
    with torch.no_grad():
        one_by_one = stepped(layer, x)
        for layer.pieces in (True, False):
            torch.testing.assert_close(layer(x), one_by_one, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("transition", TRANSITIONS)
@pytest.mark.slow
def test_gradients_are_right(transition: str) -> None:
    layer, x = make(2, 2, transition=transition).double(), x_of(7, 2, 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: layer(x), (x, *layer.parameters()))


def test_the_gradient_of_a_weight_is_the_sum_over_the_eigenvalues_that_it_decides() -> None:
    layer, x = make().double(), x_of(20)
    seen: dict[str, torch.Tensor] = {}

    def watching(u: torch.Tensor, B: torch.Tensor, C: torch.Tensor, **others: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        dt, lambda_ = others["dt"], others["lambda_"]
        seen["dt"], seen["lambda_bar"] = dt, torch.exp(dt[..., None] * lambda_)
        seen["lambda_bar"].retain_grad()
        h, y = torch.zeros(2, *layer.w.shape, dtype=torch.float64), []
        for t in range(u.shape[1]):
            h = seen["lambda_bar"][:, t] * h + u[:, t, :, None] * B[:, t, None]
            y.append((h * C[:, t, None]).sum(-1))
        return torch.stack(y, 1), h

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stablessm_core.layers.mamba.selective_scan", lambda *a, backend, pieces, **k: watching(*a, **k))
        layer(x).square().sum().backward()
    gradient, grown = layer.w.grad, seen["lambda_bar"].grad
    assert gradient is not None
    assert grown is not None
    by_eigenvalue = (seen["dt"][..., None] * seen["lambda_bar"] * grown).sum((0, 1))
    torch.testing.assert_close(gradient, -layer.w.exp() * by_eigenvalue, rtol=1e-10, atol=1e-12)
    layer.w.grad = None
    layer(x).square().sum().backward()
    torch.testing.assert_close(layer.w.grad, gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", REACHING)
def test_a_new_layer_computes_the_same_function_with_every_map(name: str) -> None:
    x, native = x_of(50).float(), make(d_state=2)
    layer = make(d_state=2, reparameterization=get_reparameterization(name, time="continuous"))
    torch.testing.assert_close(layer(x), native(x), rtol=1e-5, atol=1e-6)
    assert native.reparameterization.name == "exp"


def test_initial_weights_follow_the_published_initialization() -> None:
    layer = make(64, 16)
    torch.testing.assert_close(layer.w, torch.arange(1, 17).log().expand(128, 16))
    dt = functional.softplus(layer.dt_proj.bias)
    assert 1e-3 * 0.999 < dt.min().item() < 2e-3
    assert 5e-2 < dt.max().item() < 1e-1 * 1.001
    assert layer.dt_proj.weight.shape == (128, 4)
    assert layer.dt_proj.weight.abs().max().item() <= 0.5
    assert layer.D.tolist() == [1.0] * 128
    eigenvalues = torch.exp(-torch.tensor([1e-3, 1e-1])[:, None] * layer.w[:1].exp()[:, [0, 15]][0])
    assert (eigenvalues[0, 0].item(), eigenvalues[1, 1].item()) == pytest.approx((0.999, 0.2019), abs=1e-4)


def test_initial_eigenvalues_of_s7_cover_the_same_range_as_those_of_s6() -> None:
    layer = make(64, 16, transition="s7")
    lambda_bar = 1 - 1 / (layer.w.detach().square() + 0.5)
    assert (lambda_bar[0].item(), lambda_bar[-1].item()) == pytest.approx((math.exp(-1.6), math.exp(-1e-3)), rel=1e-4)


@pytest.mark.parametrize(("d_model", "options", "count"), [(8, {"d_state": 4}, 720), (64, {}, 32640)])
def test_the_section_builds_a_layer_with_the_public_number_of_parameters(
    d_model: int, options: dict[str, int], count: int
) -> None:
    assert Mamba(**options).parameters(d_model) == count
    for transition in TRANSITIONS:
        section = Mamba(transition=transition, **options)
        given = Surroundings(d_model, get_reparameterization("exp", time="continuous"))
        layers = []
        for _ in range(2):
            torch.manual_seed(3)
            layers.append(build_layer(section, given))
        assert section.parameters(d_model) == sum(p.numel() for p in layers[0].parameters())
        assert section.eigenvalues(d_model) == watched_records(layers[0])[0].width
        for a, b in zip(*(layer.parameters() for layer in layers), strict=True):
            assert torch.equal(a, b)
    assert (Mamba().initial_range(64), Mamba(transition="s7").initial_range(64)) == ((-16.0, -1.0), None)


def test_an_unknown_transition_and_a_map_for_s7_are_refused() -> None:
    with pytest.raises(ValueError, match="allowed: 's6'"):
        MambaBlock(4, transition="s8")
    with pytest.raises(ValueError, match="has its own"):
        MambaBlock(4, transition="s7", reparameterization=get_reparameterization("best", time="continuous"))


def test_the_records_watch_the_eigenvalues_of_all_channels_and_the_step_sizes() -> None:
    layer, x = make().double(), x_of(9)
    first, second = watched_records(layer)
    assert first.form.data | {"a": 1, "b": 0} == {
        "map": "exp", "time": "continuous", "rule": "zoh", "scale": 1.0, "a": 1, "b": 0, "dt": None, "gate": True,
    }  # fmt: skip
    assert (first.width, first.path, first.record.gate, first.record.gates) == (30, "w", "dt", 10)
    assert first.record.gradient
    assert (second.id, second.path, second.width) == ("0.dt_bias", "dt_proj.bias", 10)
    layer(x)
    driving = functional.silu(layer.conv(layer.in_x(x)))
    dt = functional.softplus(layer.dt_proj(layer.x_proj(driving)[..., :1]))
    lambda_bar = torch.exp(-dt[..., None] * layer.w.exp()).flatten(2)
    lowest, mean, highest = layer.gates()["dt"]
    rate = layer.w.detach().exp()
    for of, gate in ((lambda_bar.amin((0, 1)), highest), (lambda_bar.log().mean((0, 1)).exp(), mean)):
        torch.testing.assert_close(torch.exp(-gate[:, None] * rate).flatten(), of.detach())
    torch.testing.assert_close(torch.exp(-lowest[:, None] * rate).flatten(), lambda_bar.detach().amax((0, 1)))
    assert layer.last_state is not None
    state = layer.initial_state(2)
    for x_t in x.unbind(1):
        _, state = layer.step(x_t, state)
    torch.testing.assert_close(layer.last_state, state[1].detach().flatten(1), rtol=1e-10, atol=1e-12)


def test_the_records_watch_the_input_dependent_eigenvalues_of_s7() -> None:
    layer, x = make(transition="s7").double(), x_of(9)
    first, _ = watched_records(layer)
    assert first.form.data["map"] == "gate"
    assert (first.width, first.path, first.record.gates) == (3, "w", 3)
    layer(x)
    A = layer.w + layer.a_proj(functional.silu(layer.conv(layer.in_x(x))))
    decay = -(1 - 1 / (A * A + 0.5)).abs().log().detach()
    wanted = torch.stack([decay.amin((0, 1)), decay.mean((0, 1)), decay.amax((0, 1))])
    torch.testing.assert_close(layer.gates()["decay"], wanted)
    assert layer.last_state is not None
    assert layer.last_state.shape == (2, 3)
    with torch.no_grad():
        layer.w.fill_(math.sqrt(0.5))
        layer.a_proj.weight.zero_()
    layer.float()(x.float())
    assert layer.gates()["decay"].isfinite().all()


def test_the_recurrence_stays_in_float32_under_autocast() -> None:
    layer, x = make(16), x_of(64, 16).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, _ = layer(x), layer.step(x[:, 0], layer.initial_state(2))
    assert layer.last_state is not None
    assert layer.last_state.dtype == layer.gates()["dt"].dtype == torch.float32
    torch.testing.assert_close(y.float(), layer(x), rtol=0.1, atol=0.02)


@pytest.mark.parametrize("transition", TRANSITIONS)
@pytest.mark.slow
def test_torch_func_vmap_gives_the_same_outputs_as_the_layer(transition: str) -> None:
    layer, x = make(transition=transition).double(), x_of(7)
    replicas = torch.stack([x, 2 * x])
    wanted = torch.stack([layer(x), layer(2 * x)])
    torch.testing.assert_close(torch.func.vmap(layer)(replicas), wanted, rtol=1e-10, atol=1e-12)
