"""The scan under PyTorch's transforms: higher derivatives, vmap over replicas, torch.compile, and operator checks."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from stablessm_core.scan import autograd, linear_scan, parallel
from stablessm_core.scan.autograd import scan_adjoints, scan_states
from tests.core.scan.cases import fast_backend, problem  # noqa: F401
from tests.core.scan.pairwise import pairwise

pytestmark = pytest.mark.slow

lti_or_ltv = pytest.mark.parametrize("lti", [True, False], ids=["lti", "ltv"])
BOTH = (True, False)
WIDE = (torch.float64, torch.complex128)


@pairwise(backend=["reference", "auto"], dtype=WIDE, lti=BOTH, h0=BOTH, reverse=BOTH)
def test_first_and_second_derivatives_pass_gradcheck(backend, dtype, lti, h0, reverse) -> None:
    given = problem((2, 5, 2), dtype, lti=lti, h0=h0, reverse=reverse)
    inputs = [x.requires_grad_() for x in given.inputs().values()]
    scan = partial(linear_scan, reverse=reverse, backend=backend)
    assert torch.autograd.gradcheck(scan, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(scan, inputs, fast_mode=True)


@pytest.mark.parametrize("frozen", ["a", "b", "h0"])
@lti_or_ltv
def test_second_derivatives_are_exact_even_if_one_input_requires_no_gradient(frozen, lti) -> None:
    given = problem((2, 5, 2), torch.float64, lti=lti, h0=True)
    inputs = [x.clone().requires_grad_(name != frozen) for name, x in given.inputs().items()]
    assert torch.autograd.gradgradcheck(linear_scan, inputs, fast_mode=True)


@lti_or_ltv
def test_third_derivatives_match_the_loop(lti) -> None:
    given = problem((1, 6, 2), torch.float64, lti=lti, h0=False)

    def third(backend: str) -> torch.Tensor:
        a = given.a.clone().requires_grad_()
        value = linear_scan(a, given.b, backend=backend).square().sum()
        for _ in range(3):
            (derivative,) = torch.autograd.grad(value, a, create_graph=True)
            value = derivative.sin().sum()
        return derivative.detach()

    torch.testing.assert_close(third("auto"), third("reference"))


def stacked(lti: bool, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """a, b, h0 and weight of three replicas, stacked."""
    problems = [problem((2, length, 2), dtype, lti=lti, h0=True) for length in (40, 41, 42)]
    cut = [(p.a if lti else p.a[:, :40], p.b[:, :40], p.h0, p.weight[:, :40]) for p in problems]
    return tuple(torch.stack(tensors) for tensors in zip(*cut, strict=True))


def loss(backend: str, a, b, h0, weight) -> torch.Tensor:
    return (linear_scan(a, b, h0, backend=backend).abs().square() * weight.abs()).sum()


@pairwise(which=[(0, 0, 0), (0, None, 0), (None, 0, None), (0, 0, None)], dtype=WIDE, lti=BOTH)
def test_vmap_over_replicas_matches_a_loop_over_replicas(dtype, lti, which) -> None:
    given = stacked(lti, dtype)
    inputs = [x if dim == 0 else x[0] for x, dim in zip(given[:3], which, strict=True)]
    together = vmap(linear_scan, in_dims=which)(*inputs)
    apart = [linear_scan(*(x[i] if dim == 0 else x for x, dim in zip(inputs, which, strict=True))) for i in range(3)]
    torch.testing.assert_close(together, torch.stack(apart))


@lti_or_ltv
def test_vmap_of_gradients_and_gradients_of_vmap_match_a_loop_over_replicas(lti) -> None:
    given = stacked(lti, torch.float64)
    per_replica = vmap(grad(partial(loss, "auto"), argnums=(0, 1, 2)))(*given)
    of_the_sum = grad(lambda *x: vmap(partial(loss, "auto"))(*x).sum(), argnums=(0, 1, 2))(*given)
    leaves = [x.clone().requires_grad_() for x in given[:3]]
    sum(loss("reference", *(x[i] for x in leaves), given[3][i]) for i in range(3)).backward()
    for mapped, summed, leaf in zip(per_replica, of_the_sum, leaves, strict=True):
        torch.testing.assert_close(mapped, leaf.grad)
        torch.testing.assert_close(summed, leaf.grad)


@lti_or_ltv
def test_a_shared_eigenvalue_gets_per_replica_gradients_or_their_sum(lti) -> None:
    a, b, h0, weight = stacked(lti, torch.float64)
    shared = a[0]
    apart = vmap(grad(partial(loss, "auto")), in_dims=(None, 0, 0, 0))(shared, b, h0, weight)
    expected = [grad(partial(loss, "auto"))(shared, b[i], h0[i], weight[i]) for i in range(3)]
    torch.testing.assert_close(apart, torch.stack(expected))
    whole = grad(lambda a: vmap(partial(loss, "auto", a))(b, h0, weight).sum())(shared)
    torch.testing.assert_close(whole, sum(expected))


def test_vmap_can_be_nested() -> None:
    a, b, _, _ = stacked(True, torch.float64)
    grid = vmap(vmap(linear_scan, in_dims=(0, None)), in_dims=(None, 0))(a, b)
    for i in range(3):
        for j in range(3):
            torch.testing.assert_close(grid[i, j], linear_scan(a[j], b[i]))


@pairwise(dtype=[torch.float32, torch.complex64], lti=BOTH, h0=BOTH)
def test_the_operators_pass_pytorchs_opcheck(dtype, lti, h0, fast_backend) -> None:  # noqa: F811
    given = problem((2, 40, 3), dtype, lti=lti, h0=h0)
    torch.library.opcheck(scan_states, (given.a, given.b, given.h0, False, fast_backend))
    h = linear_scan(given.a, given.b, given.h0)
    for need in (True, False):
        torch.library.opcheck(scan_adjoints, (given.a, h, given.weight, given.h0, True, need, need and h0, fast_backend))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # raised by the compiler
@pytest.mark.parametrize("few_elements", [0, parallel.FEW_ELEMENTS], ids=["chunks", "doubling"])
def test_the_scan_compiles_as_one_graph_with_the_same_bits(few_elements, monkeypatch) -> None:
    monkeypatch.setattr(parallel, "FEW_ELEMENTS", few_elements)
    given = problem((2, 100, 3), torch.float32, lti=True, h0=True)
    a, b = given.a.clone().requires_grad_(), given.b.clone().requires_grad_()
    compiled = torch.compile(lambda a, b: linear_scan(a, b, given.h0).tanh(), fullgraph=True, backend="aot_eager")
    h = compiled(a, b)
    h.backward(given.weight)
    da = a.grad.clone()
    a.grad = None
    expected = linear_scan(a, b, given.h0).tanh()
    expected.backward(given.weight)
    assert torch.equal(h, expected)
    assert torch.equal(da, a.grad)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # raised by PyTorch's first use of forward mode
@pairwise(dtype=WIDE, lti=BOTH, h0=BOTH, reverse=BOTH)
def test_forward_mode_tangents_match_finite_differences(dtype, lti, h0, reverse) -> None:
    given = problem((2, 5, 2), dtype, lti=lti, h0=h0, reverse=reverse)
    inputs = [x.requires_grad_() for x in given.inputs().values()]
    scan = partial(linear_scan, reverse=reverse, backend="auto")
    assert torch.autograd.gradcheck(scan, inputs, check_forward_ad=True, check_backward_ad=False)
    with torch.no_grad(), forward_ad.dual_level():  # the tangent of a single input, with gradients disabled
        duals = [forward_ad.make_dual(given.a.detach(), torch.ones_like(given.a)), given.b.detach()]
        tangent = forward_ad.unpack_dual(scan(*duals)).tangent
    _, wanted = jvp(lambda a: scan(a, given.b.detach()), (given.a.detach(),), (torch.ones_like(given.a),))
    torch.testing.assert_close(tangent, wanted)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
@pairwise(which=["a", "b", "h0"], lti=BOTH, reverse=BOTH)
def test_forward_over_reverse_derivatives_match_reverse_over_reverse(which, lti, reverse) -> None:
    given = problem((1, 5, 2), torch.float64, lti=lti, h0=True, reverse=reverse)

    def value(x: torch.Tensor) -> torch.Tensor:
        inputs = given.inputs() | {which: x}
        return (linear_scan(**inputs, reverse=reverse, backend="auto").sin() * given.weight).sum()

    at = given.inputs()[which]
    torch.testing.assert_close(hessian(value)(at), torch.autograd.functional.hessian(value, at))


def test_batched_gradients_of_many_losses_match_separate_gradients() -> None:
    given = problem((1, 40, 2), torch.float64, lti=True, h0=False)
    a = given.a.clone().requires_grad_()
    last = linear_scan(a, given.b, backend="auto")[0, -1]
    together = torch.autograd.grad(last, a, torch.eye(2, dtype=torch.float64), is_grads_batched=True, retain_graph=True)[0]
    for one, e in zip(together, torch.eye(2, dtype=torch.float64), strict=True):
        torch.testing.assert_close(one, torch.autograd.grad(last, a, e, retain_graph=True)[0])


@lti_or_ltv
def test_only_a_traced_scan_calls_the_custom_operators(lti, monkeypatch) -> None:
    given = problem((2, 40, 3), torch.float32, lti=lti, h0=True)

    def gradients(a: torch.Tensor, b: torch.Tensor, h0: torch.Tensor) -> list[torch.Tensor]:
        leaves = [x.detach().requires_grad_() for x in (a, b, h0)]
        h = linear_scan(*leaves, backend="auto")
        return [h, *torch.autograd.grad(h, leaves, given.weight)]

    traced = make_fx(gradients)(given.a, given.b, given.h0)
    called = {str(node.target) for node in traced.graph.nodes if node.op == "call_function"}
    assert {"stablessm.scan_states.default", "stablessm.scan_adjoints.default"} <= called
    assert not [name for name in called if "addcmul" in name], (
        "the trace must contain the operator and not the operations inside the scan"
    )
    monkeypatch.setattr(autograd, "scan_states", None)
    monkeypatch.setattr(autograd, "scan_adjoints", None)
    for mine, theirs in zip(gradients(given.a, given.b, given.h0), traced(given.a, given.b, given.h0), strict=True):
        assert torch.equal(mine, theirs)
