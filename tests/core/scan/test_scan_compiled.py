"""The scan in C: every vector width, time tiles, number formats, threads, and activations."""

from __future__ import annotations

import pytest
import torch

from stablessm_core.numerics.activations import ACTIVATIONS
from stablessm_core.scan import compiled, linear_scan
from tests.core.scan.cases import TOLERANCE, Problem, assert_matches_up_to_cancellation, problem, relative_error
from tests.core.scan.pairwise import pairwise

BOTH = (True, False)
DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bfloat16, torch.float16)
WIDTHS = (
    1,
    2,
    3,
    5,
    7,
    8,
    12,
    16,
    33,
    100,
    200,
    530,
)  # each vector width with and without a remainder, and more columns than one task takes
LENGTHS = (1, 2, 64, 65, 130)  # around the length of a tile
EDGES = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1e-40, 3e38, -3e38)


@pairwise(width=WIDTHS, length=LENGTHS, dtype=DTYPES, lti=BOTH, h0=BOTH, reverse=BOTH)
@pytest.mark.slow
def test_every_width_and_length_matches_the_float64_loop(width, length, dtype, lti, h0, reverse) -> None:
    assert_matches_up_to_cancellation(problem((3, length, width), dtype, lti=lti, h0=h0, reverse=reverse), "cpu")


@pairwise(
    shape=[(1, 600, 70), (3, 700, 33), (2, 300, 1100), (70, 100, 16), (1, 3000, 1024), (1, 13200, 200)], dtype=DTYPES, lti=BOTH
)
@pytest.mark.slow
def test_any_number_of_threads_gives_the_same_bits(shape, dtype, lti) -> None:
    given = problem(shape, dtype, lti=lti, h0=True)
    before, found = torch.get_num_threads(), {}
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            found[threads] = given.solve("cpu")
    finally:
        torch.set_num_threads(before)
    for threads in (2, 3, 7):
        assert all(torch.equal(found[threads][name], value) for name, value in found[1].items()), threads


@pairwise(dtype=DTYPES[:4], lti=BOTH, reverse=BOTH, width=[176, 200], bad=BOTH)
@pytest.mark.slow
def test_a_large_result_that_bypasses_the_caches_matches_scans_of_single_rows(dtype, lti, reverse, width, bad) -> None:
    """Rows of whole or half cache lines. One batch row alone is too small to bypass the caches. Non-finite rows run twice."""
    length = (24 << 20) // (4 * width * dtype.itemsize)
    given = problem((4, length, width), dtype, lti=lti, h0=True, reverse=reverse)
    if bad:
        given.b[2, length // 2, 5] = float("inf")
    whole = given.solve("cpu")
    for row in range(4):
        a = given.a if lti else given.a[row : row + 1]
        one = Problem(a, given.b[row : row + 1], given.h0[row : row + 1], given.weight[row : row + 1], reverse).solve("cpu")
        for name in ("h", "db", "dh0") if lti else one:
            assert same_bits(one[name], whole[name][row : row + 1]), name


def same_bits(x: torch.Tensor, y: torch.Tensor) -> bool:
    return torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8))


@pairwise(ltv=BOTH, reverse=BOTH, value=EDGES[:3], width=[1, 20])
def test_non_finite_values_spread_as_in_the_reference_loop(ltv, reverse, value, width) -> None:
    given = problem((2, 150, width), torch.float32, lti=not ltv, h0=True, reverse=reverse)
    given.b[1, 70, 0] = value
    mine, loop = given.solve("cpu"), given.solve("reference")
    for name, wanted in loop.items():
        assert torch.equal(mine[name].isnan(), wanted.isnan()), name
        torch.testing.assert_close(mine[name], wanted, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_non_finite_values_and_rounds_to_nearest(dtype) -> None:
    edges = torch.tensor([*EDGES, 1.00390625, 1.01171875, 65_520.0, -65_519.0]).to(dtype)
    h = linear_scan(torch.zeros(1, 2, len(edges), dtype=dtype), edges.expand(1, 2, -1), backend="cpu")
    assert torch.equal(h[0, 0].isnan(), edges.isnan())
    assert torch.equal(h[0, 0][~edges.isnan()], edges[~edges.isnan()])
    state = torch.linspace(-3, 3, 999, dtype=torch.float64)
    b, a = state.to(dtype)[None, None].expand(1, 2, -1), torch.full((999,), 0.7).to(dtype)
    wanted = (a.double() * b[:, 0].double() + b[:, 0].double()).float().to(dtype)
    assert torch.equal(linear_scan(a, b, backend="cpu")[:, 1], wanted)


@pytest.mark.parametrize("ltv", BOTH, ids=["ltv", "lti"])
def test_the_gradient_sum_over_a_long_sequence_loses_no_small_terms(ltv) -> None:
    """da sums 2^17 steps: a plain float32 sum would stop growing long before the end."""
    a = torch.zeros((1, 1 << 17, 3) if ltv else 3, requires_grad=True)
    linear_scan(a, torch.full((1, 1 << 17, 3), 1.0), backend="cpu").backward(torch.full((1, 1 << 17, 3), 1.0 + 2**-20))
    total = a.grad.double().sum((0, 1)) if ltv else a.grad.double()
    assert relative_error(total, torch.full((3,), ((1 << 17) - 1) * (1 + 2**-20), dtype=torch.float64)) < 1e-7


@pytest.mark.parametrize("activation", ["tanh", "gelu", "silu", "relu"])
def test_activations_computed_in_the_scan_match_torch(activation) -> None:
    act = ACTIVATIONS[activation]
    some = torch.cat([torch.linspace(-12, 12, 50_000), torch.logspace(-30, 2, 5_000), -torch.logspace(-30, 2, 5_000)])
    b = torch.cat([torch.tensor(EDGES), some])[None, None]
    grad = torch.randn(b.shape, generator=torch.Generator().manual_seed(0))
    a, z = torch.zeros(b.shape[2]), torch.empty_like(b)
    h = compiled.states(a, b, None, False, z, activation)
    g, _, _ = compiled.adjoints(a, h, grad, None, False, False, False, z, activation)
    wide = b.double().requires_grad_()
    exact = act.act(wide)
    exact.backward(grad.double())
    cancels = b.abs().clamp(max=20) if activation in ("gelu", "silu") else torch.zeros(())
    for mine, true, scale in ((z, exact.detach(), cancels), (g, wide.grad, grad.abs() * (1 + cancels))):
        assert torch.equal(mine.isnan(), true.isnan())
        assert torch.equal(mine.isinf(), true.isinf())
        allowed = 8 * 2**-24 * torch.maximum(true.abs(), scale) + 1e-44
        ordinary = mine.isfinite()
        assert ((mine - true).abs() <= allowed)[ordinary].all()


@pairwise(activation=["tanh", "gelu", "silu", "relu"], width=[3, 16, 72], reverse=BOTH)
def test_a_scan_with_activation_matches_a_scan_followed_by_the_activation(activation, width, reverse) -> None:
    given = problem((3, 130, width), torch.float32, lti=True, h0=False, reverse=reverse)
    z = torch.empty_like(given.b)
    h = compiled.states(given.a, given.b, None, reverse, z, activation)
    assert torch.equal(h, compiled.states(given.a, given.b, None, reverse))
    assert relative_error(z, ACTIVATIONS[activation].act(h)) < TOLERANCE[torch.float32]
    g, da, _ = compiled.adjoints(given.a, h, given.weight, None, reverse, True, False, z, activation)
    through = ACTIVATIONS[activation].gradient(given.weight, h, z)
    wanted = compiled.adjoints(given.a, h, through, None, reverse, True, False)
    assert relative_error(g, wanted[0]) < TOLERANCE[torch.float32]
    assert relative_error(da, wanted[1]) < TOLERANCE[torch.float32]
