"""Causal convolutions: correct sums, no influence of future inputs, no wrap-around."""

import pytest
import torch

from stablessm_core.layers.parts.convolution import ShortConvolution, fast_length, fft_convolution


@pytest.mark.parametrize("length", [1, 2, 7, 64])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.slow
def test_the_short_convolution_matches_its_explicit_sum_and_its_single_steps(length: int, bias: bool) -> None:
    conv = ShortConvolution(5, 4, bias=bias).double()
    x = torch.randn(3, length, 5, dtype=torch.float64)
    y = conv(x)
    state, stepped = conv.initial_state(3), []
    for t in range(length):
        y_t, state = conv.step(x[:, t], state)
        stepped.append(y_t)
        taps = sum(conv.weight[:, 3 - s] * x[:, t - s] for s in range(4) if s <= t)
        torch.testing.assert_close(y[:, t], taps if conv.bias is None else taps + conv.bias)
    torch.testing.assert_close(torch.stack(stepped, 1), y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", [1, 2, 3, 7])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.slow
def test_the_short_convolution_matches_its_vmap_form_and_has_exact_derivatives(length: int, bias: bool) -> None:
    conv = ShortConvolution(2, 4, bias=bias).double()
    x = torch.randn(2, length, 2, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(conv(x), torch.func.vmap(conv)(x[None])[0], rtol=1e-12, atol=1e-12)
    inputs = (x, *conv.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: conv(x), inputs)
    assert torch.autograd.gradgradcheck(lambda x, *_: conv(x), inputs)
    with torch.autocast("cpu", torch.bfloat16):
        assert conv.float()(x.detach().float()).dtype == torch.bfloat16


@pytest.mark.parametrize("length", [1, 2, 3, 7, 100, 4097])
def test_the_fft_convolution_matches_the_causal_sum(length: int) -> None:
    x, kernel = torch.randn(2, length, 3, dtype=torch.float64), torch.randn(3, length, dtype=torch.float64)
    y = fft_convolution(x, kernel)
    assert y.shape == x.shape
    skip = torch.randn(3, dtype=torch.float64)
    torch.testing.assert_close(fft_convolution(x, kernel, skip), y + skip * x, rtol=1e-10, atol=1e-10)
    for t in {0, length // 2, length - 1}:
        wanted = (kernel[:, : t + 1].flip(1).T * x[:, : t + 1]).sum(1)
        torch.testing.assert_close(y[:, t], wanted, rtol=1e-10, atol=1e-10)


def test_the_fft_convolution_has_exact_gradients_and_keeps_float32_under_autocast() -> None:
    x = torch.randn(2, 7, 3, dtype=torch.float64, requires_grad=True)
    kernel = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(fft_convolution, (x, kernel))
    assert torch.autograd.gradgradcheck(fft_convolution, (x, kernel))
    with torch.autocast("cpu", torch.bfloat16):
        assert fft_convolution(x.detach().bfloat16(), kernel.detach().float()).dtype == torch.float32


def test_fft_lengths_are_even_and_have_only_small_prime_factors() -> None:
    assert [fast_length(n) for n in (1, 2, 7, 13, 511, 2 * 4097 - 1)] == [2, 2, 8, 16, 512, 8640]
