"""Each half of a block as one autograd node: the node matches ordinary operations, and some cases must not use it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from stablessm_core.model import Block
from stablessm_core.network import blocks, large_blocks, small_blocks
from stablessm_core.numerics.activations import ACTIVATIONS
from stablessm_core.spec.model import Model
from tests.core.scan.cases import relative_error
from tests.core.scan.pairwise import pairwise

# (batch, length, d_model). Widths that are multiples of 16 take one call. Of the other shapes, the last is split into pieces.
SHAPES = ((1, 1, 8), (1, 1, 16), (3, 20, 5), (5, 200, 16), (2, 900, 24), (19, 70, 48))


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch) -> None:
    monkeypatch.setattr(large_blocks, "CHUNK", 1 << 12)


def weights(shape: tuple[int, int, int], d_state: int) -> list[Tensor]:
    """Random x, norm weight, norm bias, lambda_bar, B, C, D, followed by the gate, up and down matrices."""
    random = torch.Generator().manual_seed(sum(shape))
    d = shape[2]

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=random)

    matrices = [normal(d_state, d) / d**0.5, normal(d, d_state) / d_state**0.5, normal(d)]
    mlp = [normal(2 * d, d) / d**0.5, normal(2 * d, d) / d**0.5, normal(d, 2 * d) / d**0.5]
    return [normal(*shape), 1 + 0.1 * normal(d), 0.1 * normal(d), torch.linspace(0.5, 0.99, d_state), *matrices, *mlp]


def norm_of(weight: Tensor, bias: Tensor) -> nn.LayerNorm:
    norm = nn.LayerNorm(len(weight))
    norm.weight, norm.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
    return norm


def with_gradients(function: Callable[..., Tensor], given: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    leaves = [t.detach().to(dtype, copy=True).requires_grad_() for t in given]
    y = function(*leaves)
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    return [y.detach(), *torch.autograd.grad(y, leaves, upstream)]


def fast_state_space(activation: str) -> Callable[..., Tensor]:
    return lambda *given: blocks.apply(blocks.StateSpace(1e-5, activation), *given)[0]


def fast_mlp(*given: Tensor) -> Tensor:
    return blocks.apply(blocks.GatedMLP(1e-5), *given)[0]


@pairwise(shape=SHAPES, d_state=[1, 12, 16, 48], activation=sorted(ACTIVATIONS))
@pytest.mark.slow
def test_the_fast_state_space_half_matches_the_ordinary_operations(shape, d_state, activation) -> None:
    given = weights(shape, d_state)[:7]
    mine = with_gradients(fast_state_space(activation), given, torch.float32)

    # called in float64, where neither the compiled scan nor the compiled activation is used
    def ordinary(*leaves: Tensor) -> Tensor:
        x, weight, bias, a, B, C, D = leaves
        z = nn.functional.layer_norm(x, x.shape[-1:], weight, bias)
        h = blocks.linear_scan(a, z @ B.t(), backend="reference")
        return x + ACTIVATIONS[activation].act(h) @ C.t() + D * z

    for value, true in zip(mine, with_gradients(ordinary, given, torch.float64), strict=True):
        assert relative_error(value, true) < 5e-6


@pytest.mark.parametrize("shape", SHAPES)
def test_the_fast_gated_half_matches_the_ordinary_operations(shape) -> None:
    full = weights(shape, 4)
    given = full[:3] + full[7:]
    mine = with_gradients(fast_mlp, given, torch.float32)
    true = with_gradients(lambda *leaves: blocks.GatedMLP(1e-5).with_torch(*leaves), given, torch.float64)
    for value, wanted in zip(mine, true, strict=True):
        assert relative_error(value, wanted) < 5e-6


@pytest.mark.parametrize("half", ["state space", "gated"])
def test_second_derivatives_match_the_ordinary_operations(half) -> None:
    full = weights((2, 9, 6), 5)
    given = full[:7] if half == "state space" else full[:3] + full[7:]
    fast = fast_state_space("tanh") if half == "state space" else fast_mlp
    leaves = [t.clone().requires_grad_() for t in given]
    first = torch.autograd.grad(fast(*leaves).square().sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves)
    wide = [t.double().requires_grad_() for t in given]
    constants = blocks.StateSpace(1e-5, "tanh") if half == "state space" else blocks.GatedMLP(1e-5)
    value = constants.with_torch(*wide)
    first = torch.autograd.grad(value.square().sum(), wide, create_graph=True)
    for mine, true in zip(second, torch.autograd.grad(sum(g.square().sum() for g in first), wide), strict=True):
        assert relative_error(mine, true) < 2e-4


@pytest.mark.parametrize("frozen", range(6))
def test_a_frozen_parameter_does_not_change_the_other_gradients(frozen) -> None:
    full = weights((3, 300, 8), 5)
    given = full[:3] + full[7:]
    every = with_gradients(fast_mlp, given, torch.float32)[1:]
    leaves = [t.clone().requires_grad_(i != frozen) for i, t in enumerate(given)]
    y = fast_mlp(*leaves)
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    y.backward(upstream)
    for i, leaf in enumerate(leaves):
        assert (leaf.grad is None) == (i == frozen)
        assert leaf.grad is None or torch.equal(leaf.grad, every[i])


def block(**changes: object) -> Block:
    torch.manual_seed(0)
    config = Model(**{"d_model": 16, "d_state": 8, "n_layers": 1, **changes})
    return Block(config, scan_backend="auto", fused="auto")


def test_a_block_uses_the_fast_halves_and_gives_the_same_bits_with_and_without_gradients(monkeypatch) -> None:
    made, x = block(), torch.randn(4, 500, 16)
    y = made(x)
    assert type(y.grad_fn).__name__ == "_HalfBackward"
    with torch.no_grad():
        assert torch.equal(made(x), y)
    assert torch.equal(made(x), y)
    last = made.ssm.last_state.clone()
    made.scan_backend = made.ssm.scan_backend = "torch"
    ordinary = made(x)
    assert type(ordinary.grad_fn).__name__ == "AddBackward0"
    torch.testing.assert_close(y, ordinary, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(last, made.ssm.last_state, rtol=1e-4, atol=1e-5)


def test_the_fast_halves_are_not_used_under_autocast_vmap_dropout_or_in_float64() -> None:
    made, x = block(), torch.randn(2, 10, 16)
    with torch.autocast("cpu", torch.bfloat16):
        assert not blocks.can_run("auto", x)
    assert not blocks.can_run("auto", x.double())
    assert not blocks.can_run("torch", x)
    assert blocks.can_run("auto", x, made.ssm.w)
    torch.func.vmap(lambda row: made(row[None])[0])(x)
    torch.testing.assert_close(torch.func.vmap(lambda row: made(row[None])[0])(x), made(x), rtol=1e-4, atol=1e-5)
    dropping = block(dropout=0.5)
    assert type(dropping(x).grad_fn).__name__ == "AddBackward0"
    assert type(dropping.eval()(x).grad_fn).__name__ == "_HalfBackward"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_non_finite_input_affects_only_later_steps_of_its_own_sequence(value) -> None:
    made, x = block(), torch.randn(3, 800, 16)
    clean = made(x)
    x[1, 300, 4] = value
    y = made(x)
    spoiled = torch.zeros(3, 800, dtype=torch.bool)
    spoiled[1, 300:] = True
    assert torch.equal(y.isfinite().all(2), ~spoiled)
    assert torch.equal(y[~spoiled], clean[~spoiled])


@pytest.mark.parametrize("fast", [fast_state_space("gelu"), fast_mlp], ids=["state space", "gated"])
def test_any_number_of_threads_gives_the_same_bits(fast) -> None:
    full = weights((19, 130, 48), 32)
    given = full[:3] + full[7:] if fast is fast_mlp else full[:7]
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            found.append(with_gradients(fast, given, torch.float32))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(x, y) for x, y in zip(found[0], other, strict=True))


@pytest.mark.parametrize("scale", [1e18, 1e20, 1e30, 1e38])
def test_inputs_too_large_for_a_norm_make_their_row_nan_as_in_pytorch(scale) -> None:
    random = torch.Generator().manual_seed(0)
    x, dz = (torch.randn(40, 32, generator=random) for _ in range(2))
    x[7] *= scale
    norm = torch.ones(32), torch.zeros(32), 1e-5
    z, norms = small_blocks.layer_norm(x, norm)
    known, mean, rstd = torch.native_layer_norm(x, (32,), *norm)
    torch.testing.assert_close(z, known, rtol=1e-5, atol=1e-5, equal_nan=True)
    found = small_blocks.layer_norm_gradient(x, norm, norms, dz)
    back = torch.ops.aten.native_layer_norm_backward.default(dz, x, (32,), mean, rstd, *norm[:2], [True] * 3)
    for mine, true in zip(found, back, strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-4, atol=1e-4, equal_nan=True)
