"""Every backend gives the states and gradients of the float64 loop, whatever the shape, direction and strides."""

from __future__ import annotations

import math

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from stablessm_core.kernels import library
from stablessm_core.scan import linear_scan, parallel, resolve_backend
from tests.core.scan.cases import (
    PoisoningTorch,
    Problem,
    assert_matches_the_float64_loop,
    assert_matches_up_to_cancellation,
    problem,
)
from tests.core.scan.pairwise import pairwise

FAST = ("torch", "cpu")
BACKENDS = ("reference", *FAST)
DTYPES = (torch.float64, torch.complex128, torch.float32, torch.complex64)
SHAPES = ((2, 1, 3), (1, 2, 1), (3, 17, 2), (1, 33, 4), (2, 63, 3), (2, 545, 2))

BOTH = (True, False)
both_ways = pytest.mark.parametrize("doubling", BOTH, ids=["doubling", "chunks"], indirect=True)


@pytest.fixture(autouse=True)
def _poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "torch", PoisoningTorch())


@pytest.fixture(autouse=True)
def doubling(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """True (default): few elements are scanned by doubling. False: they are scanned in chunks, as many elements are."""
    if not getattr(request, "param", True):
        monkeypatch.setattr(parallel, "FEW_ELEMENTS", 0)


def test_the_reference_backend_computes_the_recurrence() -> None:
    a, b, h0 = torch.tensor([0.5, -1.0]), torch.tensor([[[1.0, 1.0], [2.0, 0.0], [0.0, 4.0]]]), torch.tensor([[4.0, 3.0]])
    forward = linear_scan(a, b, h0, backend="reference")
    assert forward.tolist() == [[[3.0, -2.0], [3.5, 2.0], [1.75, 2.0]]]
    backward = linear_scan(a, b, h0, reverse=True, backend="reference")
    assert backward.tolist() == [[[2.5, 2.0], [3.0, -1.0], [2.0, 1.0]]]
    without = linear_scan(a, b, backend="reference")
    assert without.tolist() == [[[1.0, 1.0], [2.5, -1.0], [1.25, 5.0]]]


@pairwise(indirect=["doubling"], doubling=BOTH, shape=SHAPES, dtype=DTYPES, lti=BOTH, h0=BOTH, reverse=BOTH, backend=FAST)
def test_fast_backends_match_the_float64_loop(shape, dtype, lti, h0, reverse, backend) -> None:
    assert_matches_the_float64_loop(problem(shape, dtype, lti=lti, h0=h0, reverse=reverse), backend)


@hypothesis.given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 300), st.integers(1, 4)),
    dtype=st.sampled_from(DTYPES),
    few_elements=st.sampled_from([0, parallel.FEW_ELEMENTS]),
    lti=st.booleans(),
    h0=st.booleans(),
    reverse=st.booleans(),
)
@pytest.mark.slow
def test_torch_backend_matches_the_float64_loop_at_any_shape(shape, dtype, few_elements, lti, h0, reverse) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "FEW_ELEMENTS", few_elements)
        assert_matches_up_to_cancellation(problem(shape, dtype, lti=lti, h0=h0, reverse=reverse), "torch")


@pairwise(indirect=["doubling"], doubling=BOTH, shape=[(1, 784, 3), (2, 1000, 1), (1, 20, 2048)], lti=BOTH, backend=FAST)
def test_common_sizes_match_the_float64_loop(shape, lti, backend) -> None:
    assert_matches_the_float64_loop(problem(shape, torch.float32, lti=lti, h0=True), backend)


@pairwise(indirect=["doubling"], doubling=BOTH, dtype=[torch.bfloat16, torch.float16], backend=BACKENDS, lti=BOTH)
def test_half_precision_inputs_are_accumulated_in_float32(dtype, backend, lti) -> None:
    assert_matches_the_float64_loop(problem((2, 200, 3), dtype, lti=lti, h0=True), backend)


@pairwise(indirect=["doubling"], doubling=BOTH, dtype=DTYPES, lti=BOTH, backend=FAST)
def test_the_result_does_not_depend_on_strides(dtype, lti, backend) -> None:
    given = problem((3, 50, 4), dtype, lti=lti, h0=True)
    transposed = Problem(
        given.a if lti else given.a.permute(2, 1, 0).contiguous().permute(2, 1, 0),
        given.b.transpose(1, 2).contiguous().transpose(1, 2),
        given.h0.t().contiguous().t(),
        given.weight[:1, :1].expand(given.weight.shape),
        reverse=False,
    )
    assert_matches_the_float64_loop(transposed, backend)
    expanded = Problem(given.a, given.b[:1].expand(3, 50, 4), given.h0[:, :1].expand(3, 4), given.weight, reverse=False)
    assert_matches_the_float64_loop(expanded, backend)


@pairwise(indirect=["doubling"], doubling=BOTH, backend=FAST)
def test_lazily_conjugated_inputs_are_read_as_their_values(backend) -> None:
    given = problem((2, 40, 3), torch.complex128, lti=False, h0=True)
    lazy = Problem(given.a.conj(), given.b.conj(), given.h0.conj(), given.weight.conj(), reverse=False)
    assert_matches_the_float64_loop(lazy, backend)


@pairwise(indirect=["doubling"], doubling=BOTH, dtype=DTYPES, lti=BOTH, backend=FAST)
def test_two_runs_give_the_same_bits(dtype, lti, backend) -> None:
    given = problem((4, 300, 5), dtype, lti=lti, h0=True)
    first, second = given.solve(backend), given.solve(backend)
    assert all(torch.equal(first[name], second[name]) for name in first)


@both_ways
def test_only_inputs_that_require_gradients_get_gradients() -> None:
    given = problem((2, 40, 3), torch.float64, lti=True, h0=True)
    b = given.b.clone().requires_grad_()
    linear_scan(given.a, b, given.h0).backward(given.weight)
    torch.testing.assert_close(b.grad, given.solve("reference")["db"])
    a = given.a.clone().requires_grad_()
    linear_scan(a, given.b).sum().backward()
    assert a.grad is not None


def test_result_has_the_common_dtype_of_the_arguments() -> None:
    a, b = torch.tensor([0.5, 0.25]), torch.ones(1, 4, 2, dtype=torch.bfloat16, requires_grad=True)
    h = linear_scan(a, b)
    assert h.dtype == torch.float32
    h.sum().backward()
    assert b.grad.dtype == torch.bfloat16
    assert linear_scan(a.to(torch.complex64), b).dtype == torch.complex64


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"b": torch.ones(4, 3)}, ValueError, r"\(batch, length, d_state\).*got \(4, 3\)"),
        ({"b": torch.ones(2, 0, 3)}, ValueError, r"length at least 1, got \(2, 0, 3\)"),
        ({"a": torch.ones(4)}, ValueError, r"a must be \(3,\) or b's shape \(2, 5, 3\), got \(4,\)"),
        ({"a": torch.ones(2, 1, 3)}, ValueError, r"got \(2, 1, 3\)"),
        ({"h0": torch.ones(3)}, ValueError, r"\(batch, d_state\) = \(2, 3\), got \(3,\)"),
        ({"a": torch.ones(3, dtype=torch.int64)}, TypeError, "got torch.int64"),
        ({"b": [1.0]}, TypeError, "b must be a tensor, got list"),
        ({"a": torch.ones(3, device="meta")}, ValueError, "b is on cpu, a on meta"),
        ({"backend": "cuda"}, ValueError, "auto, cpu, reference, torch, triton, got 'cuda'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_arguments_that_do_not_fit_are_refused_with_expected_and_actual_values(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        linear_scan(**{"a": torch.ones(3), "b": torch.ones(2, 5, 3), **arguments})


def test_the_auto_backend_uses_the_compiled_cpu_kernels_if_they_were_built(monkeypatch) -> None:
    assert resolve_backend("auto", "cpu") == "cpu"
    monkeypatch.setattr(library, "why_not_compiled", lambda: "there was no compiler")
    assert resolve_backend("auto", "cpu") == "torch"
    with pytest.raises(ValueError, match=r"'cpu' cannot run here: there was no compiler; backend 'torch' works on cpu"):
        resolve_backend("cpu", "cpu")
    with pytest.raises(ValueError, match=r"'cpu' cannot run here: tensors are on cuda, its kernels need the CPU"):
        resolve_backend("cpu", "cuda")
    assert resolve_backend("reference", torch.device("cpu")) == "reference"


@both_ways
def test_the_scan_computes_a_geometric_series() -> None:
    """With a constant input of 1 the state is (1 - a^t) / (1 - a)."""
    a = torch.tensor([0.9, -0.5, 0.0], dtype=torch.float64)
    h = linear_scan(a, torch.ones(1, 200, 3, dtype=torch.float64))
    t = torch.arange(1, 201)[:, None]
    torch.testing.assert_close(h[0], (1 - a**t) / (1 - a), rtol=1e-13, atol=0)
    assert math.isclose(h[0, -1, 0].item(), 10.0, rel_tol=1e-8)
