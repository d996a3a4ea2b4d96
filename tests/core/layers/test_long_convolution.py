"""The convolution with a kernel as long as the sequence: correct sums, no influence of future inputs, no wrap-around, and exact
derivatives, whether C code computes all products or Fourier transforms are used."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from stablessm_core.kernels import library
from stablessm_core.layers.parts import long_convolution as convolutions
from stablessm_core.layers.parts.long_convolution import fast_length, long_convolution
from stablessm_core.scan import why_not_compiled

OBSTACLE = why_not_compiled(torch.device("cpu"))
BACKENDS = [pytest.param("cpu", marks=pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))), "torch"]
compiled = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))


def given(batch: int, length: int, channels: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(batch + length + channels)
    shapes = (batch, length, channels), (channels, length)
    x, kernel = (torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype) for shape in shapes)
    return x, kernel


def explicit(x: Tensor, kernel: Tensor) -> Tensor:
    """The sums, written as one product with the triangular matrix of each channel."""
    length = x.shape[1]
    lags = torch.arange(length)[:, None] - torch.arange(length)
    matrices = torch.where(lags >= 0, kernel[:, lags.clamp(min=0)], 0)
    return torch.einsum("cts,bsc->btc", matrices, x)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(2, 1, 3), (2, 2, 3), (1, 7, 1), (3, 8, 16), (2, 9, 17), (5, 100, 5), (1, 193, 2)])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_values_and_gradients_are_those_of_the_causal_sum(
    backend: str, shape: tuple[int, int, int], dtype: torch.dtype, error: float
) -> None:
    x, kernel = (t.requires_grad_() for t in given(*shape, dtype))
    y = long_convolution(x, kernel, backend=backend)
    wanted = explicit(*(exact := [t.detach().double().requires_grad_() for t in (x, kernel)]))
    upstream = torch.cos(torch.arange(y.numel(), dtype=torch.float64)).view(y.shape)
    results = y, *torch.autograd.grad(y, (x, kernel), upstream.to(dtype))
    for found, right in zip(results, (wanted, *torch.autograd.grad(wanted, exact, upstream)), strict=True):
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), right, rtol=error, atol=error * shape[1])
    (dx,) = torch.autograd.grad(long_convolution(x, kernel.detach(), backend=backend), x, upstream.to(dtype))
    assert torch.equal(dx, results[1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_skip_adds_the_input_times_one_number_per_channel(backend: str) -> None:
    (x, kernel), skip = given(2, 20, 3), torch.randn(3, dtype=torch.float64)
    y = long_convolution(x, kernel, skip, backend=backend)
    torch.testing.assert_close(y, explicit(x, kernel) + skip * x, rtol=1e-12, atol=1e-12)


def test_a_sequence_too_long_for_all_products_does_not_wrap_around() -> None:
    x, kernel = given(2, 4097, 3)
    y = long_convolution(x, kernel)
    for t in (0, 2048, 4096):
        wanted = (kernel[:, : t + 1].flip(1).T * x[:, : t + 1]).sum(1)
        torch.testing.assert_close(y[:, t], wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # raised by PyTorch's first use of forward mode
@pytest.mark.parametrize("backend", BACKENDS)
def test_derivatives_are_exact_in_every_mode(backend: str) -> None:
    inputs = tuple(t.requires_grad_() for t in given(2, 9, 3))

    def y(x: Tensor, kernel: Tensor) -> Tensor:
        return long_convolution(x, kernel, backend=backend)

    assert torch.autograd.gradcheck(y, inputs)
    assert torch.autograd.gradgradcheck(y, inputs)
    made = y(*inputs)
    several = torch.stack([torch.ones_like(made), made.detach()])
    together = torch.autograd.grad(made, inputs, several, is_grads_batched=True, retain_graph=True)
    for found, one in zip(together, inputs, strict=True):
        alone = [torch.autograd.grad(made, one, upstream, retain_graph=True)[0] for upstream in several]
        torch.testing.assert_close(found, torch.stack(alone), rtol=1e-12, atol=1e-12)
    _, tangent = torch.func.jvp(y, tuple(t.detach() for t in inputs), tuple(t.detach() for t in inputs))
    torch.testing.assert_close(tangent, 2 * made.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_kernels_dtype_is_kept_under_autocast(backend: str) -> None:
    x, kernel = given(2, 9, 3, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert long_convolution(x.bfloat16(), kernel, backend=backend).dtype == torch.float32


@compiled
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_bad_number_reaches_neither_earlier_steps_nor_other_sequences(bad: float) -> None:
    x, kernel = given(3, 50, 5, torch.float32)
    clean = long_convolution(x, kernel)
    x[1, 20, 2] = bad
    y = long_convolution(x, kernel)
    assert not y[1, 20:, 2].isfinite().any()
    y[1, 20:, 2] = clean[1, 20:, 2]
    assert torch.equal(y, clean)


@compiled
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_bad_number_of_a_long_kernel_reaches_no_earlier_step(bad: float) -> None:
    x, kernel = given(2, 600, 3, torch.float32)
    kernel[1, 500] = bad
    y = long_convolution(x, kernel)
    assert y[:, :500].isfinite().all()
    assert y[..., [0, 2]].isfinite().all()
    assert not y[:, 500:, 1].isfinite().any()


@compiled
@pytest.mark.parametrize("length", [196, 1000])
def test_a_kernel_that_grows_loses_no_digit_of_the_early_steps(length: int) -> None:
    """With Fourier transforms, the early steps are rounding errors of the late steps."""
    (x, kernel), growth = given(2, length, 3, torch.float32), 40 / length
    kernel = kernel.abs() * torch.exp(growth * torch.arange(length))
    x, upstream = x.abs().requires_grad_(), torch.ones_like(x)
    y = long_convolution(x, kernel)
    (dx,) = torch.autograd.grad(y, x, upstream)
    exact = x.detach().double().requires_grad_()
    wanted = explicit(exact, kernel.double())
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=0)
    torch.testing.assert_close(dx.double(), *torch.autograd.grad(wanted, exact, upstream.double()), rtol=1e-5, atol=0)
    by_transforms = convolutions._FourierConvolution.apply(x, kernel)  # type: ignore[no-untyped-call]
    assert ((by_transforms.double() - wanted).abs() > wanted)[:, : length // 4].all(0).any()


@compiled
def test_no_number_of_threads_changes_a_bit() -> None:
    x, kernel = (t.requires_grad_() for t in given(16, 200, 24, torch.float32))

    def results(threads: int) -> list[Tensor]:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            y = long_convolution(x, kernel)
            return [y, *torch.autograd.grad(y, (x, kernel), x)]
        finally:
            torch.set_num_threads(before)

    assert all(torch.equal(one, two) for one, two in zip(results(1), results(2), strict=True))


@compiled
def test_an_observer_sees_one_operation_with_the_bits_of_an_unobserved_call(monkeypatch: pytest.MonkeyPatch) -> None:
    x, kernel = given(2, 40, 3, torch.float32)

    def results(*inputs: Tensor) -> list[Tensor]:
        leaves = [t.detach().requires_grad_() for t in inputs]
        y = long_convolution(*leaves)
        return [y, *torch.autograd.grad(y, leaves, torch.ones_like(y))]

    traced = make_fx(results)(x, kernel)
    called = {str(node.target) for node in traced.graph.nodes if node.op == "call_function"}
    assert {"stablessm.convolution.default", "stablessm.convolution_gradients.default"} <= called
    assert not [name for name in called if "fft" in name]
    seen: Any = traced(x, kernel)
    monkeypatch.setattr(convolutions, "convolution_op", None)
    monkeypatch.setattr(convolutions, "convolution_gradients_op", None)
    assert all(torch.equal(one, two) for one, two in zip(results(x, kernel), seen, strict=True))


@compiled
@pytest.mark.slow
def test_the_operators_are_consistent_for_pytorch() -> None:
    x, kernel = given(2, 9, 3)
    torch.library.opcheck(convolutions.convolution_op, (x, kernel))
    for needed in ((True, True), (True, False), (False, True)):
        torch.library.opcheck(convolutions.convolution_gradients_op, (x, kernel, x, *needed))


@compiled
def test_a_sequence_without_rows_steps_or_channels_is_no_error() -> None:
    for shape in ((0, 5, 3), (2, 5, 0)):
        x, kernel = given(*shape)
        assert long_convolution(x, kernel).shape == shape
    assert library.target() in convolutions.DIRECT_LENGTH


def test_fft_lengths_are_even_and_have_only_small_prime_factors() -> None:
    assert [fast_length(n) for n in (1, 2, 7, 13, 511, 2 * 4097 - 1)] == [2, 2, 8, 16, 512, 8640]
