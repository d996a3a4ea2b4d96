"""The Triton kernels: compiled on a CUDA device, interpreted on the CPU under TRITON_INTERPRET=1 (`test_scan_interpreter`)."""

from __future__ import annotations

import mmap
import os
from functools import partial

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from stablessm_core.scan import configurations, linear_scan
from stablessm_core.scan.configurations import Tile
from tests.core.scan.cases import (
    PoisoningTorch,
    Problem,
    assert_matches_the_float64_loop,
    assert_matches_up_to_cancellation,
    patch_the_language_once,
    problem,
)
from tests.core.scan.pairwise import pairwise

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
SHAPES = ((2, 11, 3), (1, 1, 1)) if INTERPRETED else ((2, 1, 3), (3, 63, 1), (1, 1000, 33), (2, 4097, 3), (2, 20, 2048))

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="no CUDA device"),
]
BOTH = (True, False)
REAL_OR_COMPLEX = (torch.float32, torch.complex64)
lti_or_ltv = pytest.mark.parametrize("lti", [True, False], ids=["lti", "ltv"])
real_or_complex = pytest.mark.parametrize("dtype", REAL_OR_COMPLEX, ids=["real", "complex"])


@pytest.fixture(autouse=True)
def _small_tiles_in_poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the tiles so small that even the interpreter's small inputs have several tiles in time and in d_state."""
    triton_scan = pytest.importorskip("stablessm_core.scan.triton_scan")
    monkeypatch.setattr(triton_scan, "torch", PoisoningTorch())
    if INTERPRETED:
        monkeypatch.setattr(configurations, "DEFAULT", dict.fromkeys(configurations.DEFAULT, (Tile(2, 2, 2, 1),)))
        patch_the_language_once(monkeypatch)


@pytest.fixture
def _look_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every device run one tile per program, whatever the number of chains is."""
    tile = Tile(2, 2, 2, 1, look_back=True) if INTERPRETED else Tile(16, 4, 16, 4, look_back=True)
    monkeypatch.setattr(configurations, "DEFAULT", dict.fromkeys(configurations.DEFAULT, (tile, tile)))
    monkeypatch.setattr(configurations, "TABLE", {})
    monkeypatch.setattr(configurations, "FEW_PROGRAMS", 1 << 30)
    monkeypatch.setattr(configurations, "MANY_TILES", 2)


@pairwise(shape=SHAPES, dtype=REAL_OR_COMPLEX, lti=BOTH, h0=BOTH, reverse=BOTH)
def test_the_triton_backend_matches_the_float64_loop(shape, dtype, lti, h0, reverse) -> None:
    assert_matches_the_float64_loop(problem(shape, dtype, lti=lti, h0=h0, reverse=reverse), "triton", DEVICE)


@hypothesis.settings(max_examples=10 if INTERPRETED else 100)
@hypothesis.given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 13 if INTERPRETED else 3000), st.integers(1, 5 if INTERPRETED else 70)),
    dtype=st.sampled_from(REAL_OR_COMPLEX),
    lti=st.booleans(),
    h0=st.booleans(),
    reverse=st.booleans(),
)
def test_the_triton_backend_matches_the_float64_loop_at_any_shape(shape, dtype, lti, h0, reverse) -> None:
    assert_matches_up_to_cancellation(problem(shape, dtype, lti=lti, h0=h0, reverse=reverse), "triton", DEVICE)


LONG = (1, 71, 2) if INTERPRETED else (2, 20_000, 40)  # more tiles than a group has


@pytest.mark.parametrize(
    ("dtype", "lti", "reverse"),
    [(torch.float32, True, False), (torch.float32, False, True), (torch.complex64, False, False)],
    ids=["lti", "ltv-reverse-h0", "complex"],
)
@pytest.mark.usefixtures("_look_back")
@pytest.mark.parametrize("patience", [None, 0], ids=["in time", "too late"])
def test_concurrent_tiles_of_one_chain_match_the_float64_loop(dtype, lti, reverse, patience, monkeypatch) -> None:
    """Without patience, most tiles on a device do not wait for their predecessor, and their chains are repaired afterwards."""
    if patience is not None:
        monkeypatch.setattr("stablessm_core.scan.triton_scan.PATIENCE", patience)
    assert_matches_the_float64_loop(problem(LONG, dtype, lti=lti, h0=reverse, reverse=reverse), "triton", DEVICE)


def overflowing(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Chain 0 overflows in the second strip; the combined map of the later strips would bring it back to zero."""
    a, b = torch.full((1, length, 3), 0.5), torch.ones(1, length, 3)
    a[0, 5, 0], b[0, 4, 0] = 1e30, 1e30
    a[0, 6:, 0] = 1e-30
    a[0, 9, 1] = float("nan")
    return a, b


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning", "ignore:invalid value:RuntimeWarning")  # interpreter
@pytest.mark.parametrize("tiles", ["walked", "at once"])
def test_an_overflowed_state_stays_non_finite_and_other_chains_keep_their_bits(tiles, request) -> None:
    if tiles == "at once":
        request.getfixturevalue("_look_back")
    a, b = overflowing(21)
    clean = linear_scan(torch.full_like(a, 0.5).to(DEVICE), torch.ones_like(b).to(DEVICE), backend="triton").cpu()
    leaves = [x.clone().to(DEVICE).requires_grad_() for x in (a, b)]
    h = linear_scan(*leaves, backend="triton")
    expected = linear_scan(a, b, backend="reference")
    assert torch.equal(h.detach().cpu().isfinite(), expected.isfinite())
    assert torch.equal(h.detach().cpu()[..., 2], clean[..., 2])
    h.sum().backward()
    truth = [x.clone().requires_grad_() for x in (a, b)]
    linear_scan(*truth, backend="reference").sum().backward()
    for mine, theirs in zip(leaves, truth, strict=True):
        assert torch.equal(mine.grad.cpu().isfinite(), theirs.grad.isfinite())


@pytest.mark.skipif(not INTERPRETED, reason="a device cannot read mapped memory that is not allocated")
@lti_or_ltv
@pytest.mark.parametrize(("shape", "strides"), [((3, 2, 2), (1 << 30, 64)), ((2, 3, 2), (64, 1 << 30))], ids=["batch", "time"])
def test_offsets_do_not_wrap_at_two_to_the_31(lti, shape, strides) -> None:
    """Strides whose products need more than 31 bits, over mapped memory of which only a few pages are ever allocated."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    memory = mmap.mmap(-1, 2 * ((1 << 31) + 128), flags=flags)
    b = torch.frombuffer(memory, dtype=torch.bfloat16).as_strided(shape, (*strides, 1))
    b.copy_(torch.arange(12.0).reshape(shape))
    a = torch.tensor([0.5, -0.25])
    a = a if lti else a.expand(shape)
    h = linear_scan(a, b, backend="triton")
    torch.testing.assert_close(h, linear_scan(a.clone(), b.clone(), backend="reference"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128, torch.bfloat16, torch.float16], ids=str)
@lti_or_ltv
def test_other_precisions_match_the_float64_loop(dtype, lti) -> None:
    assert_matches_the_float64_loop(problem((1, 10, 2), dtype, lti=lti, h0=True), "triton", DEVICE)


@real_or_complex
@lti_or_ltv
def test_the_result_does_not_depend_on_strides(dtype, lti) -> None:
    given = problem((2, 10, 2), dtype, lti=lti, h0=True)
    transposed = Problem(
        given.a if lti else given.a.permute(2, 1, 0).contiguous().permute(2, 1, 0),
        given.b.transpose(1, 2).contiguous().transpose(1, 2).conj(),
        given.h0.t().contiguous().t(),
        given.weight[:1, :1].expand(given.weight.shape).conj(),
        reverse=False,
    )
    assert_matches_the_float64_loop(transposed, "triton", DEVICE)


def test_float32_eigenvalues_and_bfloat16_inputs_give_float32_states() -> None:
    a, b = torch.tensor([0.5, 0.25], device=DEVICE), torch.ones(1, 10, 2, dtype=torch.bfloat16, device=DEVICE, requires_grad=True)
    h = linear_scan(a, b, backend="triton")
    assert h.dtype == torch.float32
    torch.testing.assert_close(h, linear_scan(a, b, backend="reference"))
    h.sum().backward()
    assert b.grad.dtype == torch.bfloat16


@lti_or_ltv
def test_no_gradient_is_computed_for_frozen_eigenvalues(lti) -> None:
    given = problem((1, 10, 2), torch.float32, lti=lti, h0=False)
    b = given.b.to(DEVICE).requires_grad_()
    linear_scan(given.a.to(DEVICE), b, backend="triton").backward(given.weight.to(DEVICE))
    torch.testing.assert_close(b.grad.cpu(), given.solve("reference")["db"])


@real_or_complex
@lti_or_ltv
def test_two_runs_give_the_same_bits(dtype, lti) -> None:
    given = problem((1, 10, 2) if INTERPRETED else (8, 1000, 64), dtype, lti=lti, h0=True)
    first, second = given.solve("triton", device=DEVICE), given.solve("triton", device=DEVICE)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning", "ignore:invalid value:RuntimeWarning")  # interpreter
@real_or_complex
@lti_or_ltv
def test_zero_states_stay_zero_even_if_powers_of_the_eigenvalue_overflow(dtype, lti) -> None:
    b = torch.zeros(1, 12, 2, dtype=dtype, device=DEVICE)
    b[:, 10:] = 1
    a = torch.full((2,) if lti else b.shape, 1e30, dtype=dtype, device=DEVICE)
    h = linear_scan(a, b, backend="triton")
    torch.testing.assert_close(h, linear_scan(a, b, backend="reference"))
    assert h.isfinite().all()


@real_or_complex
@lti_or_ltv
def test_a_non_finite_input_affects_only_later_steps_of_its_own_chain(dtype, lti) -> None:
    b = torch.randn(2, 20, 3, dtype=dtype, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    b[1, 10, 2] = float("nan")
    h = linear_scan(torch.full((3,) if lti else b.shape, 0.9, dtype=dtype, device=DEVICE), b, backend="triton")
    spoiled = torch.zeros(b.shape, dtype=torch.bool, device=DEVICE)
    spoiled[1, 10:, 2] = True
    assert torch.equal(~h.isfinite(), spoiled)


@real_or_complex
def test_a_non_finite_eigenvalue_makes_even_a_zero_state_nan(dtype) -> None:
    a = torch.tensor([0.9, float("nan")], dtype=dtype, device=DEVICE)
    h = linear_scan(a, torch.zeros(1, 12, 2, dtype=dtype, device=DEVICE), backend="triton")
    assert h[:, 1:, 1].isnan().all()
    assert (h[..., 0] == 0).all()


@lti_or_ltv
def test_a_scan_needs_one_kernel_launch_and_its_gradients_another(lti, monkeypatch) -> None:
    triton_scan = pytest.importorskip("stablessm_core.scan.triton_scan")
    kernel, launches = triton_scan.scan_kernel, []

    class Counted:
        def __getitem__(self, grid: tuple[int, ...]) -> object:
            launches.append(grid)
            return kernel[grid]

    monkeypatch.setattr(triton_scan, "scan_kernel", Counted())
    problem((1, 5, 2), torch.float32, lti=lti, h0=True).solve("triton", device=DEVICE)
    assert len(launches) == 2


def test_an_empty_batch_gives_an_empty_result() -> None:
    assert linear_scan(torch.ones(3, device=DEVICE), torch.ones(0, 5, 3, device=DEVICE), backend="triton").shape == (0, 5, 3)


@pytest.mark.skipif(INTERPRETED, reason="too slow in the interpreter")
@lti_or_ltv
def test_float32_stays_accurate_over_long_sequences_near_the_boundary(lti) -> None:
    a = torch.tensor([1 - 1e-4, -(1 - 1e-4), 0.0, 1.0], device=DEVICE)
    b = torch.randn(2, 131_072, 4, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(0))
    truth = linear_scan(a.double(), b.double(), backend="torch")
    h = linear_scan(a if lti else a.expand(b.shape), b, backend="triton")
    assert ((h - truth).abs().amax((0, 1)) / truth.abs().amax((0, 1))).max() < 1e-4


@pytest.mark.skipif(INTERPRETED, reason="needs 20 GiB of device memory")
def test_a_tensor_with_more_than_two_to_the_31_elements_is_scanned_correctly() -> None:
    b = torch.zeros(3, 1 << 20, 1024, dtype=torch.bfloat16, device=DEVICE)
    b[-1, -2, -1] = 1
    h = linear_scan(torch.full((1024,), 0.5, dtype=torch.bfloat16, device=DEVICE), b, backend="triton")
    assert h[-1, -2:, -1].tolist() == [1.0, 0.5]
    assert h.count_nonzero() == 2


@real_or_complex
def test_replicas_with_separate_eigenvalues_match_separate_scans(dtype) -> None:
    """a has the shape (replicas, d_state). A replica's batch rows read its row of a, and its da is summed over them only."""
    problems = [problem((2, length, 3), dtype, lti=True, h0=False) for length in (5, 6)]
    a = torch.stack([given.a for given in problems]).to(DEVICE).requires_grad_()
    b = torch.stack([given.b[:, :5] for given in problems]).to(DEVICE)
    together = torch.func.vmap(partial(linear_scan, backend="triton"))(a, b)
    (da,) = torch.autograd.grad(together.abs().square().sum(), a)
    apart = torch.stack([linear_scan(a[i], b[i], backend="reference") for i in range(2)])
    (expected,) = torch.autograd.grad(apart.abs().square().sum(), a)
    torch.testing.assert_close(together, apart)
    torch.testing.assert_close(da, expected, rtol=1e-5, atol=1e-4)


@lti_or_ltv
def test_without_h0_the_first_step_is_not_multiplied_by_the_eigenvalue(lti) -> None:
    b = torch.ones((1, 5, 2), device=DEVICE)
    a = torch.tensor([float("nan"), 0.5], device=DEVICE)
    a = a if lti else a.expand(b.shape)
    none, zero = (linear_scan(a, b, h0, backend="triton") for h0 in (None, torch.zeros((1, 2), device=DEVICE)))
    assert none[0, 0].tolist() == [1.0, 1.0]
    assert not none[0, 1:, 0].isfinite().any()
    assert not zero[0, :, 0].isfinite().any()
    assert torch.equal(none[..., 1], zero[..., 1])
