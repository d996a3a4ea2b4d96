"""A small network as one autograd node: values and derivatives equal those of ordinary operations, and training steps reuse
the buffers."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stablessm_core.model import Network
from stablessm_core.network.step_buffers import StepBuffers
from stablessm_core.spec.model import Model
from tests.core.scan.cases import relative_error

TASKS = {
    "regression": SimpleNamespace(kind="regression", input_size=2, vocabulary=None, output_size=3),
    "classification": SimpleNamespace(kind="classification", input_size=1, vocabulary=None, output_size=10),
    "next_token": SimpleNamespace(kind="next_token", input_size=None, vocabulary=7, output_size=7),
}


class Doubled(nn.Linear):
    """A linear layer that the fast path must not replace, because it doubles its output."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def made(kind: str = "classification", **changes: Any) -> Network:
    torch.manual_seed(0)
    config = Model(**{"d_model": 32, "d_state": 16, "n_layers": 2, **changes})
    return Network(config, TASKS[kind])


def batch(kind: str = "classification", seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    if kind == "next_token":
        return torch.randint(0, 7, (3, 40), generator=random)
    return torch.randn(3, 40, TASKS[kind].input_size, generator=random)


def node(y: Tensor) -> str:
    return type(y.grad_fn).__name__


def with_hook(model: Network) -> Network:
    """A copy of the network with a hook on a block, which makes the network run module by module."""
    hooked = copy.deepcopy(model)
    hooked.blocks[0].register_forward_hook(lambda *_: None)
    return hooked


def gradients(y: Tensor, model: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(y.square().sum(), list(model.parameters())))


@pytest.mark.parametrize("changes", [{}, {"mlp_expansion": 0}, {"activation": "silu", "n_layers": 1}], ids=str)
@pytest.mark.parametrize("kind", TASKS)
def test_the_fast_network_matches_the_ordinary_network(kind: str, changes: dict[str, Any]) -> None:
    model, x = made(kind, **changes), batch(kind)
    wide, ordinary = copy.deepcopy(model).double(), with_hook(model)
    y, known = model(x), wide(x.double() if x.is_floating_point() else x)
    assert node(y) == "_NetworkBackward"
    assert node(ordinary(x)) != "_NetworkBackward" != node(known)
    assert relative_error(y, known) < 2e-6
    for mine, true in zip(gradients(y, model), gradients(known, wide), strict=True):
        assert relative_error(mine, true) < 5e-6
    with torch.no_grad():
        assert torch.equal(model(x), y)
    for one, other in zip(model.blocks, ordinary.blocks, strict=True):
        torch.testing.assert_close(one.ssm.last_state, other.ssm.last_state, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["regression", "next_token"])
def test_second_derivatives_match_the_ordinary_operations(kind: str) -> None:
    model, x = made(kind, n_layers=1), batch(kind)
    wide, found = copy.deepcopy(model).double(), []
    for one, given in ((model, x), (wide, x.double() if x.is_floating_point() else x)):
        weights = list(one.parameters())
        first = torch.autograd.grad(one(given).square().sum(), weights, create_graph=True)
        found.append(torch.autograd.grad(sum(g.square().sum() for g in first), weights))
    for mine, true in zip(*found, strict=True):
        assert relative_error(mine, true) < 2e-4


def test_the_fast_network_uses_replaced_modules_and_weights() -> None:
    model, x = made(), batch()
    model(x)
    model.blocks[1].mlp.up = nn.Linear(32, 64, bias=False)
    model.head.weight = nn.Parameter(torch.randn(10, 32))
    y = model(x)
    assert node(y) == "_NetworkBackward"
    torch.testing.assert_close(y, with_hook(model)(x), rtol=1e-4, atol=1e-5)
    model.norm.scale = nn.Parameter(torch.ones(32))  # the kernels do not support an additional parameter
    model.blocks[0].norm.register_module("inside", nn.Identity())
    assert node(model(x)) != "_NetworkBackward"


def test_the_fast_network_is_not_used_for_unsupported_models_and_inputs() -> None:
    model, x = made(), batch()
    assert node(model(x.requires_grad_())) != "_NetworkBackward"
    assert node(made(dropout=0.5)(batch())) != "_NetworkBackward"
    assert node(made(d_model=24)(batch())) != "_NetworkBackward"
    other = Network(Model(d_model=32, n_layers=1, layer={"name": "s5"}), TASKS["classification"])
    assert node(other(batch())) != "_NetworkBackward"
    scaled = made()
    scaled.head = Doubled(32, 10)
    torch.testing.assert_close(scaled(batch()), with_hook(scaled)(batch()))
    assert node(scaled(batch())) != "_NetworkBackward"
    across = batch("regression").transpose(0, 1).contiguous().transpose(0, 1)
    assert node(made("regression")(across)) != "_NetworkBackward"
    with pytest.raises(ValueError, match="batch, length, d_model"):
        made("regression")(batch("regression")[None])
    with torch.autocast("cpu", torch.bfloat16):
        assert node(model(batch())) != "_NetworkBackward"
    frozen = made()
    frozen.blocks[0].ssm.w.requires_grad_(False)
    with_it, without = frozen(batch()), model(batch())
    with_it.sum().backward()
    without.sum().backward()
    for (name, p), (_, q) in zip(frozen.named_parameters(), model.named_parameters(), strict=True):
        assert p.grad is None if name == "blocks.0.ssm.w" else torch.equal(p.grad, q.grad)


def test_a_network_can_be_copied_and_pickled_after_a_forward_pass() -> None:
    model, x = made(), batch()
    y = model(x)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(again(x), y)
        with torch.no_grad():
            again.head.weight.zero_()
        assert not torch.equal(again(x), y)
    assert torch.equal(model(x), y)


@pytest.mark.parametrize("kind", TASKS)
def test_steps_in_reused_buffers_match_steps_in_fresh_buffers(kind: str) -> None:
    model, fresh, buffers, x = made(kind), made(kind), StepBuffers(), batch(kind)
    rooms = set()
    for step in range(4):
        x.copy_(batch(kind, step))
        for one, lent in ((model, True), (fresh, False)):
            for p in one.parameters():
                p.grad = None
            if lent:
                with buffers.activate():
                    y = one(x)
                    y.square().sum().backward()
                assert node(y) == "_ReplayBackward"
            else:
                known = one(x)
                known.square().sum().backward()
        assert torch.equal(y, known)
        rooms.add(tuple(p.grad.data_ptr() for p in model.parameters()))
        for mine, true in zip(model.parameters(), fresh.parameters(), strict=True):
            assert torch.equal(mine.grad, true.grad)
            with torch.no_grad():
                mine -= 1e-4 * mine.grad
                true -= 1e-4 * true.grad
        assert all(torch.equal(a.ssm.last_state, b.ssm.last_state) for a, b in zip(model.blocks, fresh.blocks, strict=True))
    assert len(rooms) == 1


def test_buffers_are_not_reused_for_another_shape_other_weights_or_without_gradients() -> None:
    model, buffers, x = made(), StepBuffers(), batch()
    with buffers.activate():
        model(x).sum().backward()
        first = [p.grad.clone() for p in model.parameters()]
        model(x).sum().backward()  # adds to the existing gradients, as autograd does
        for p, once in zip(model.parameters(), first, strict=True):
            torch.testing.assert_close(p.grad, 2 * once)
        y = model(x[:2].clone())
        torch.testing.assert_close(y, with_hook(model)(x[:2]), rtol=1e-4, atol=1e-5)
        model.blocks[0].ssm.B = nn.Parameter(torch.randn(16, 32))
        y = model(x)
        torch.testing.assert_close(y, with_hook(model)(x), rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            assert torch.equal(model(x), y)
        (y.sum() + 0 * y.square().sum()).backward()
        with pytest.raises(RuntimeError, match="second derivatives"):
            model(x).square().sum().backward(create_graph=True)


def test_non_finite_values_do_not_remain_in_reused_buffers() -> None:
    model, buffers, x = made("regression"), StepBuffers(), batch("regression")
    for value, finite in ((float("nan"), False), (0.5, True), (float("inf"), False)):
        x[1, 20, 0] = value
        for p in model.parameters():
            p.grad = None
        with buffers.activate():
            y = model(x)
            y.sum().backward()
        assert bool(y[1, 20:].isfinite().all()) == finite
        assert y[1, :20].isfinite().all()
        assert y[[0, 2]].isfinite().all()
        assert bool(model.blocks[0].ssm.w.grad.isfinite().all()) == finite
