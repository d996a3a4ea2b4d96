"""The fused layer's Triton kernels: on a CUDA device, or on the CPU under TRITON_INTERPRET=1 (`test_fused_interpreter`)."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from stablessm_core.fused import chunked
from stablessm_core.layers import StableSSM
from stablessm_core.numerics.activations import ACTIVATIONS
from stablessm_core.reparameterization import get_reparameterization
from stablessm_core.scan import triton_scan
from tests.core.scan.cases import PoisoningTorch, peak_memory

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
NAMES = ("y", "last", "da", "dB", "dC", "dD", "dx")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning", "ignore:invalid value:RuntimeWarning"),
    # Triton 3.6 on numpy 2.3 calls `int` on an array with one element
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning"),
]
triton_layer = pytest.importorskip("stablessm_core.fused.triton_layer")
ON_A_DEVICE = {name: getattr(triton_layer, name) for name in ("TILES", "INNER", "PARTS")}


@pytest.fixture(autouse=True)
def _small_tiles_in_poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes tiles and partial sums so small that even the interpreter's small inputs have several of each."""
    monkeypatch.setattr(triton_layer, "torch", PoisoningTorch())
    if INTERPRETED:
        monkeypatch.setattr(triton_layer, "TILES", {256: triton_layer.Tile(8, 4, 4)})
        monkeypatch.setattr(triton_layer, "INNER", 4)
        monkeypatch.setattr(triton_layer, "PARTS", 4)


def problem(length: int = 18, d_model: int = 5, d_state: int = 3, batch: int = 1) -> list[Tensor]:
    """Random a, B, C, D, x and gradient of y; the values of a include a negative one, zero and one."""
    random = torch.Generator().manual_seed(0)
    a = 1.9 * torch.rand(d_state, generator=random) - 0.95
    a[:3] = torch.tensor([0.0, 1.0, -1.0])[:d_state]
    B = torch.randn(d_state, d_model, generator=random) / d_model**0.5
    C = torch.randn(d_model, d_state, generator=random) / d_state**0.5
    rest = [torch.randn(shape, generator=random) for shape in ((d_model,), (batch, length, d_model), (batch, length, d_model))]
    return [a, B, C, *rest]


def solve(given: list[Tensor], activation: str = "tanh", products: torch.dtype = torch.float32) -> list[Tensor]:
    *inputs, grad = (t.to(DEVICE) for t in given)
    y, last, before = triton_layer.forward(*inputs, activation, products)
    return [t.cpu() for t in (y, last, *triton_layer.backward(*inputs, before, grad, activation, products))]


def truth(given: list[Tensor], activation: str = "tanh") -> list[Tensor]:
    *inputs, grad = (t.double() for t in given)
    y, last, before = chunked.forward(*inputs, activation, torch.float64)
    return [y, last, *chunked.backward(*inputs, before, grad, activation, torch.float64)]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_values_and_gradients_match_a_float64_computation(activation: str) -> None:
    given = problem()
    for name, got, wanted in zip(NAMES, solve(given, activation), truth(given, activation), strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=2e-5, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (18, 17, 5, 2)], ids=str)
def test_values_and_gradients_match_float64_at_any_shape(shape: tuple[int, int, int, int]) -> None:
    length, d_model, d_state, batch = shape
    given = problem(length, d_model, d_state, batch)
    for got, wanted in zip(solve(given), truth(given), strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.skipif(INTERPRETED, reason="too slow in the interpreter")
@pytest.mark.parametrize("d", [64, 128, 250, 256])
def test_values_and_gradients_match_float64_at_realistic_sizes(d: int) -> None:
    given = problem(1000, d, d, 8)
    for got, wanted in zip(solve(given), truth(given), strict=True):
        assert (got - wanted).norm() <= 1e-5 * wanted.norm()


def test_half_precision_products_keep_float32_states() -> None:
    given = problem()
    # float16 in the interpreter, which treats the bits of bfloat16 as integers
    found = solve(given, products=torch.float16 if INTERPRETED else torch.bfloat16)
    assert {t.dtype for t in found} == {torch.float32}
    for got, wanted in zip(found, truth(given), strict=True):
        assert (got - wanted).norm() <= 0.02 * wanted.norm()


def test_two_runs_give_the_same_bits() -> None:
    given = problem()
    assert all(torch.equal(one, other) for one, other in zip(solve(given), solve(given), strict=True))


def test_a_non_finite_input_changes_only_its_own_sequence_from_its_own_step_on() -> None:
    given = problem(batch=2)
    given[4][1, 16, 2] = float("nan")
    y, last, *_, dx = solve(given)
    spoiled = torch.zeros(2, 18, dtype=torch.bool)
    spoiled[1, 16:] = True
    assert torch.equal(~y.isfinite().all(2), spoiled)
    assert torch.equal(last.isfinite().all(1), torch.tensor([True, False]))
    assert dx[0].isfinite().all()


def test_a_diverging_eigenvalue_makes_only_the_last_state_non_finite() -> None:
    given = problem(d_state=4)
    given[0][3] = 1e4
    _, last, *_ = solve(given)
    assert last.isfinite().all(0).tolist() == [True, True, True, False]


def test_an_empty_batch_gives_empty_outputs_and_zero_gradients() -> None:
    y, last, da, *_ = solve(problem(batch=0))
    assert y.shape == (0, 18, 5)
    assert last.shape == (0, 3)
    assert (da == 0).all()


class Nothing:
    """A stand-in for a kernel: launching it does nothing."""

    def __getitem__(self, _grid: object) -> Callable[..., None]:
        return lambda *_arguments, **_options: None


@pytest.mark.skipif(not INTERPRETED, reason="`benchmarks.layer` measures the memory on a device")
@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize(("batch", "length"), [(50, 784), (8, 4096)])
def test_the_kernels_need_less_than_half_the_peak_memory_of_the_unfused_layer(d, batch, length, monkeypatch) -> None:
    """Compares the allocations of both layers with the tiles of a device. The kernels do not have to run for that.

        With fewer steps, for example 16,384, the fused layer needs more than half of the memory, because the partial sums of the
    weights' gradients do not shrink with the number of steps.
    """
    for name, value in ON_A_DEVICE.items():
        monkeypatch.setattr(triton_layer, name, value)
    monkeypatch.setattr(triton_layer, "torch", torch)
    monkeypatch.setattr(triton_layer._Shape, "launch", lambda *_arguments, **_options: None)
    monkeypatch.setattr(triton_scan, "scan_kernel", Nothing())
    x, grad = torch.zeros(batch, length, d, requires_grad=True), torch.zeros(batch, length, d)
    held = {}
    for fused in ("on", "off"):
        layer = StableSSM(
            d, d, reparameterization=get_reparameterization("best", time="discrete"), fused=fused, scan_backend="triton"
        )
        held[fused] = peak_memory(lambda layer=layer: layer(x).backward(grad))
    assert 0 < 2 * held["on"] < held["off"]
