"""The scan kernel with whole tiles: in the interpreter with those of an H100 or H200, on a CUDA device with its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace
from typing import Any

import pytest
import torch

from stablessm_core.scan import configurations, linear_scan
from tests.core.scan.cases import (
    PoisoningTorch,
    Problem,
    assert_matches_the_float64_loop,
    loop64,
    patch_the_language_once,
    problem,
    relative_error,
)

triton_scan = pytest.importorskip("stablessm_core.scan.triton_scan")

INTERPRETED = triton_scan.INTERPRETED
DEVICE = "cpu" if INTERPRETED else "cuda"
CAPABILITY = (9, 0) if INTERPRETED or not torch.cuda.is_available() else torch.cuda.get_device_capability()
ROWS = configurations.TABLE.get(CAPABILITY, {})
BOUNDARY = (0.0, 1 - 1e-7, -(1 - 1e-4), 1.0, -1.0)
PRECISION = {
    torch.bfloat16: "half",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
}
lti_or_ltv = pytest.mark.parametrize("lti", [True, False], ids=["lti", "ltv"])


def with_the_kernel(test: Callable[..., None]) -> Callable[..., None]:
    absent = not INTERPRETED and not torch.cuda.is_available()
    return pytest.mark.gpu(pytest.mark.skipif(absent, reason="no CUDA device")(test))


@pytest.fixture(autouse=True)
def _as_on_hopper_in_poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_scan, "torch", PoisoningTorch())
    if INTERPRETED:
        from triton.runtime import interpreter

        monkeypatch.setattr(triton_scan, "capability_of", lambda _device: CAPABILITY)
        # the interpreter's own implementation scans one number at a time
        monkeypatch.setattr(interpreter.ScanOps, "generic_scan", scanned_row_by_row)
        patch_the_language_once(monkeypatch)


def scanned_row_by_row(scan: Any, values: Any) -> list[Any]:
    """A replacement for the interpreter's scan: the same operations in the same order, but on whole rows."""
    assert scan.axis == 0
    done = [value.handle.data.copy() for value in values]
    for q in range(1, len(done[0])):
        before, here = (
            [scan.to_tensor(x[i : i + 1], value.dtype) for x, value in zip(done, values, strict=True)] for i in (q - 1, q)
        )
        for x, joined in zip(done, scan.combine_fn.fn(*before, *here), strict=True):
            x[q] = joined.handle.data[0]
    return [scan.to_tensor(x, value.dtype) for x, value in zip(done, values, strict=True)]


def kinds(dtype: torch.dtype, lti: bool) -> list[configurations.Kind]:
    return [(role, "lti" if lti else "ltv", PRECISION[dtype]) for role in ("states", "adjoints")]


def assert_whole_tiles_match_the_float64_loop(wanted: list[configurations.Tile], given: Problem) -> None:
    batch, length, d_state = given.b.shape
    lti = given.a.dim() == 1
    taken = [configurations.tile_for(CAPABILITY, kind, batch, length, d_state) for kind in kinds(given.b.dtype, lti)]
    assert [astuple(tile)[:3] for tile in taken] == [astuple(tile)[:3] for tile in wanted]
    assert [tile.look_back for tile in taken] == [tile.look_back for tile in wanted]
    assert_matches_the_float64_loop(given, "triton", DEVICE)


@with_the_kernel
@lti_or_ltv
@pytest.mark.parametrize("dtype", PRECISION, ids=str)
def test_whole_tiles_match_the_float64_loop(dtype, lti) -> None:
    """Two blocks of d_state and three tiles in time; the last block and the last tile are not full."""
    tiles = [ROWS.get(kind, configurations.DEFAULT[kind[2]])[0] for kind in kinds(dtype, lti)]
    shape = 1, 2 * max(tile.strips * tile.rows for tile in tiles) + 1, max(tile.channels for tile in tiles) + 1
    assert_whole_tiles_match_the_float64_loop(tiles, problem(shape, dtype, lti=lti, h0=True))


@with_the_kernel
@pytest.mark.skipif(not ROWS, reason="this device is not in the table and uses only sequential tiles")
@lti_or_ltv
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.complex64], ids=str)
def test_whole_tiles_that_run_concurrently_match_the_float64_loop(dtype, lti, monkeypatch) -> None:
    """More tiles than a group has, and exactly as many chains as one tile covers."""
    monkeypatch.setattr(configurations, "MANY_TILES", 17)
    tiles = [ROWS[kind][-1] for kind in kinds(dtype, lti)]
    assert all(tile.look_back for tile in tiles)
    shape = 1, 16 * max(tile.strips * tile.rows for tile in tiles) + 1, max(tile.channels for tile in tiles)
    assert_whole_tiles_match_the_float64_loop(tiles, problem(shape, dtype, lti=lti, h0=False, reverse=True))


@with_the_kernel
@pytest.mark.parametrize(
    ("shape", "dtype", "lti", "h0", "reverse"),
    [
        ((1, 1, 1), torch.float32, True, False, False),
        ((2, 1, 3), torch.float32, False, True, True),
        ((1, 2, 2048), torch.float32, True, True, False),
        ((2, 2, 3), torch.complex64, False, True, True),
        ((2, 63, 1), torch.float32, False, True, False),
        ((1, 63, 2048), torch.bfloat16, True, False, True),
        ((1, 63, 3), torch.complex64, True, True, False),
        ((2, 1000, 3), torch.float32, True, True, True),
        ((1, 1000, 3), torch.float32, False, False, False),
        ((1, 1000, 1), torch.bfloat16, False, True, False),
    ],
    ids=str,
)
def test_tiles_reduced_to_the_problem_size_match_the_float64_loop(shape, dtype, lti, h0, reverse) -> None:
    assert_matches_the_float64_loop(problem(shape, dtype, lti=lti, h0=h0, reverse=reverse), "triton", DEVICE)


@with_the_kernel
@lti_or_ltv
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_eigenvalues_at_and_near_the_boundary_match_the_float64_loop(lti, reverse) -> None:
    given = problem((1, 1000, len(BOUNDARY)), torch.float32, lti=lti, h0=True, reverse=reverse)
    a = torch.tensor(BOUNDARY)
    assert_matches_the_float64_loop(replace(given, a=a if lti else a.expand(given.b.shape)), "triton", DEVICE)


@with_the_kernel
@lti_or_ltv
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=["real", "complex"])
def test_the_result_does_not_depend_on_strides(dtype, lti) -> None:
    """b has time as its last dimension in memory, the gradient is expanded, h0 is transposed; an LTV a has stride 0 in time."""
    given = problem((2, 200, 5), dtype, lti=True, h0=True)
    strided = Problem(
        given.a if lti else given.a.expand(given.b.shape),
        given.b.transpose(1, 2).contiguous().transpose(1, 2),
        given.h0.t().contiguous().t(),
        given.weight[:1, :1].expand(given.weight.shape),
        reverse=False,
    )
    assert_matches_the_float64_loop(strided, "triton", DEVICE)


@with_the_kernel
@lti_or_ltv
def test_inputs_with_strides_over_batch_and_time_are_read_in_place(lti) -> None:
    """The inputs are every second batch row and every third step of a larger tensor."""
    given = problem((4, 600, 8), torch.float32, lti=False, h0=False)
    a = given.a[0, 0] if lti else given.a[::2, ::3]
    assert_matches_the_float64_loop(Problem(a, given.b[::2, ::3], None, given.weight[::2, ::3], False), "triton", DEVICE)


@with_the_kernel
@lti_or_ltv
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=["real", "complex"])
def test_two_runs_give_the_same_bits(dtype, lti) -> None:
    given = problem((1, 200, 33), dtype, lti=lti, h0=True)
    first, second = given.solve("triton", device=DEVICE), given.solve("triton", device=DEVICE)
    assert all(torch.equal(first[name], second[name]) for name in first)


@with_the_kernel
@pytest.mark.parametrize(
    ("length", "lti", "few_programs", "gradients"),
    [
        (131_072 if not INTERPRETED else 32_768, True, 0, not INTERPRETED),
        (131_072 if not INTERPRETED else 8_192, False, configurations.FEW_PROGRAMS, True),
    ],
    ids=["lti-walked", "ltv-at once"],
)
def test_long_sequences_near_the_boundary_match_the_float64_loop(length, lti, few_programs, gradients, monkeypatch) -> None:
    monkeypatch.setattr(configurations, "FEW_PROGRAMS", few_programs)
    a = torch.tensor(BOUNDARY)
    b, weight = torch.randn(2, 1, length, len(a), generator=torch.Generator().manual_seed(0)).unbind(0)
    leaves = [x.to(DEVICE).detach().requires_grad_(gradients) for x in (a if lti else a.expand(b.shape), b)]
    found = linear_scan(*leaves, backend="triton")
    h = loop64(a, b)
    pairs = [(found.detach(), h)]
    if gradients:
        found.backward(weight.to(DEVICE))
        g = loop64(a, weight.flip(1)).flip(1)
        da = h.roll(1, 1) * g
        da[:, 0] = 0
        pairs += [(leaves[1].grad, g), (leaves[0].grad, da.sum((0, 1)) if lti else da)]
    for value, truth in pairs:
        for n in range(len(a)):
            assert relative_error(value[..., n].cpu(), truth[..., n]) < 1e-4, f"lambda {a[n]}"
