"""The convolution with a few taps: correct sums, single steps and derivatives."""

import pytest
import torch

from stablessm_core.layers.parts.short_convolution import ShortConvolution


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
