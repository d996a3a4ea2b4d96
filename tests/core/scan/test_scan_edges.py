"""Scans near and beyond the stability boundary: long sequences, overflow, NaN, Inf, and the torch backend's allocations."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stablessm_core.scan import linear_scan, parallel
from tests.core.scan.cases import fast_backend, loop64, relative_error  # noqa: F401
from tests.core.scan.pairwise import pairwise

pytestmark = pytest.mark.slow

BOTH = (True, False)
BOUNDARY = (1 - 1e-4, -(1 - 1e-4), 1 - 1e-3, 0.0, 1.0, 1 - 1e-7)


@pairwise(length=[65_536, 131_072], ltv=BOTH, data=["noise", "constant"])
def test_float32_stays_accurate_over_long_sequences_near_the_boundary(length, ltv, data) -> None:
    a = torch.tensor(BOUNDARY)
    b = torch.randn(1, length, a.numel(), generator=torch.Generator().manual_seed(0))
    b = b if data == "noise" else torch.full_like(b, 0.37)
    truth = loop64(a, b)
    h = linear_scan(a.expand(b.shape) if ltv else a, b)
    for n in range(a.numel()):
        assert relative_error(h[..., n], truth[..., n]) < 1e-5, f"lambda {a[n]}"


def test_complex_float32_stays_accurate_over_long_sequences_near_the_boundary() -> None:
    a = torch.polar(torch.full((3,), 1 - 1e-4), torch.tensor([0.001, 1.0, 3.1]))
    b = torch.randn(1, 65_536, 3, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    truth = loop64(a, b)
    for n in range(3):
        assert relative_error(linear_scan(a, b)[..., n], truth[..., n]) < 1e-5


def test_gradients_stay_accurate_over_long_sequences_near_the_boundary() -> None:
    """da is the sum over time of the previous state times the adjoint; the expected factors come from float64 loops."""
    a = torch.tensor(BOUNDARY[:4], requires_grad=True)
    b = torch.randn(1, 65_536, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    weight = torch.randn(b.shape, generator=torch.Generator().manual_seed(1))
    linear_scan(a, b).backward(weight)
    h, g = loop64(a.detach(), b.detach()), loop64(a.detach(), weight.flip(1)).flip(1)
    assert relative_error(b.grad, g) < 1e-5
    assert relative_error(a.grad, (h[:, :-1] * g[:, 1:]).sum((0, 1))) < 1e-5


@pytest.mark.parametrize("ltv", [False, True], ids=["lti", "ltv"])
@pytest.mark.parametrize("silent", [0, 764, 784], ids=["dense", "late input", "no input"])
def test_an_unstable_scan_overflows_at_the_same_step_as_the_reference_loop(ltv, silent) -> None:
    """Powers of these a overflow long before 784 steps. A zero state must stay zero, although 0 * inf is NaN."""
    a = torch.tensor([2.0, -2.0, 1.5, 1e30, 3e38, -1.5])
    b = torch.randn(2, 784, a.numel(), generator=torch.Generator().manual_seed(0))
    b[:, :silent] = 0
    expected = linear_scan(a, b, backend="reference")
    h = linear_scan(a.expand(b.shape) if ltv else a, b, backend="auto")
    finite = expected.isfinite()
    assert torch.equal(h.isfinite(), finite)
    assert finite.all() == (silent == 784)
    torch.testing.assert_close(h[finite], expected[finite], rtol=1e-4, atol=0)


@pairwise(few_elements=[0, parallel.FEW_ELEMENTS], ltv=BOTH, reverse=BOTH)
def test_an_overflowed_state_never_becomes_finite_again(few_elements, ltv, reverse, monkeypatch) -> None:
    """Combined in float64, the steps after the overflow would make the state finite again; in the recurrence they never do."""
    monkeypatch.setattr(parallel, "FEW_ELEMENTS", few_elements)
    a = torch.full((2, 100, 3), 0.5) if ltv else torch.tensor([0.5, 0.9, -0.5])
    b = torch.ones(2, 100, 3)
    if ltv:
        a[0, 40, 0], a[0, 41:, 0], a[0, :40, 0] = 1e30, 1e-30, 1e-30
        b[0, [39, 41], 0] = 1e30
    else:
        b[0, 40:44, 0] = 3e38
    expected = linear_scan(a, b, reverse=reverse, backend="reference")
    h = linear_scan(a, b, reverse=reverse)
    assert not expected.isfinite().all()
    assert torch.equal(h.isfinite(), expected.isfinite())
    torch.testing.assert_close(h, expected, equal_nan=True)


def test_overflowed_states_stay_non_finite_on_a_gpu_without_reading_from_the_device() -> None:
    h = torch.tensor([1.0, float("inf"), 2.0, float("nan"), 3.0]).reshape(1, 5, 1)
    forward, reverse = h.clone(), h.clone()
    parallel._propagate_nonfinite(forward, reverse=False)
    parallel._propagate_nonfinite(reverse, reverse=True)
    assert forward.isfinite().flatten().tolist() == [True, False, False, False, False]
    assert reverse.isfinite().flatten().tolist() == [False, False, False, False, True]
    assert forward[0, 1, 0] == float("inf")


@pairwise(value=[float("nan"), float("inf"), float("-inf")], ltv=BOTH, reverse=BOTH)
def test_a_non_finite_input_affects_only_later_steps_of_its_own_chain(value, ltv, reverse) -> None:
    b = torch.randn(3, 1000, 4, generator=torch.Generator().manual_seed(0))
    a = torch.full(b.shape if ltv else (4,), 0.9)
    clean = linear_scan(a, b, reverse=reverse)
    b[1, 500, 2] = value
    h = linear_scan(a, b, reverse=reverse)
    spoiled = torch.zeros(b.shape, dtype=torch.bool)
    spoiled[1, slice(0, 501) if reverse else slice(500, None), 2] = True
    assert torch.equal(~h.isfinite(), spoiled)
    assert torch.equal(h[~spoiled], clean[~spoiled])


def test_a_non_finite_eigenvalue_affects_only_its_own_chain() -> None:
    b = torch.randn(2, 200, 3)
    h = linear_scan(torch.tensor([0.9, float("nan"), -0.9]), b)
    assert h[:, 1:, 1].isnan().all()
    assert torch.equal(h[:, 0, 1], b[:, 0, 1])
    assert h[..., [0, 2]].isfinite().all()


def test_a_non_finite_gradient_affects_only_earlier_steps_of_its_own_chain() -> None:
    b = torch.randn(2, 300, 3, requires_grad=True)
    a = torch.tensor([0.9, 0.5, -0.9], requires_grad=True)
    weight = torch.ones(b.shape)
    weight[1, 100, 2] = float("nan")
    linear_scan(a, b).backward(weight)
    spoiled = torch.zeros(b.shape, dtype=torch.bool)
    spoiled[1, :101, 2] = True
    assert torch.equal(b.grad.isnan(), spoiled)
    assert a.grad.isnan().tolist() == [False, False, True]


class Operations(TorchDispatchMode):
    """Counts operators and records the largest number of elements that one of them allocated."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.largest = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.count += 1
        if isinstance(result, torch.Tensor) and not func.is_view:
            self.largest = max(self.largest, result.numel())
        return result


def operations(length: int, ltv: bool) -> Operations:
    b = torch.ones(2, length, 2)
    a = torch.full(b.shape if ltv else (2,), 0.9)
    with Operations() as seen:
        h = parallel.states(a, b, None, reverse=False)
        parallel.adjoints(a, h, b, None, reverse=False, need_da=True, need_dh0=False)
    return seen


@pytest.mark.parametrize("ltv", [False, True], ids=["lti", "ltv"])
def test_operations_grow_logarithmically_and_memory_linearly_with_the_length(ltv, monkeypatch) -> None:
    monkeypatch.setattr(parallel, "FEW_ELEMENTS", 0)
    short, long = operations(512, ltv), operations(512 * 64, ltv)
    assert long.count < 3 * short.count
    assert short.largest == 2 * 512 * 2
    assert long.largest == 64 * short.largest


def test_zero_sized_batches_and_states_pass_through() -> None:
    assert linear_scan(torch.ones(3), torch.ones(0, 50, 3)).shape == (0, 50, 3)
    assert linear_scan(torch.ones(0), torch.ones(2, 50, 0)).shape == (2, 50, 0)


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("ltv", [False, True], ids=["lti", "ltv"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_without_h0_the_first_step_is_not_multiplied_by_the_eigenvalue(backend, ltv, bad) -> None:
    b = torch.ones(1, 40, 2)
    a = torch.tensor([bad, 0.5])
    a = a.expand(b.shape) if ltv else a
    none, zero = linear_scan(a, b, backend=backend), linear_scan(a, b, torch.zeros(1, 2), backend=backend)
    assert none[0, 0].tolist() == [1.0, 1.0]
    assert not none[0, 1:, 0].isfinite().any()
    assert not zero[0, :, 0].isfinite().any()
    assert torch.equal(none[..., 1], zero[..., 1])


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("ltv", [False, True], ids=["lti", "ltv"])
def test_a_single_step_without_h0_still_gives_a_zero_gradient_for_a(backend, ltv) -> None:
    b = torch.tensor([[[-0.0, 2.0]]])
    a = torch.full(b.shape if ltv else (2,), float("nan"), requires_grad=True)
    h = linear_scan(a, b, backend=backend)
    assert torch.equal(h.signbit(), b.signbit())
    assert torch.autograd.grad(h.sum(), a)[0].count_nonzero() == 0
