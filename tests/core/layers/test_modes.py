"""Kernels that are sums of modes: correct at every lag and length, with exact gradients and final states."""

import pytest
import torch

from stablessm_core.layers.parts.modes import final_states, mode_kernel


def modes(channels: int = 3, count: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    size, angle = (
        torch.rand(channels, count, dtype=torch.float64) * 0.3 + 0.7,
        6 * torch.rand(channels, count, dtype=torch.float64),
    )
    return torch.polar(size, angle), torch.randn(channels, count, dtype=torch.complex128)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 15, 16, 17, 100, 257, 4097])
def test_the_kernel_is_the_sum_of_powers_of_the_modes(length: int) -> None:
    lambda_bar, c = modes()
    powers = lambda_bar[..., None] ** torch.arange(length)
    wanted = (c[..., None] * powers).sum(1).real
    torch.testing.assert_close(mode_kernel(lambda_bar, c, length), wanted, rtol=1e-11, atol=1e-11)


def test_the_last_lags_of_a_float32_kernel_are_as_exact_as_the_first() -> None:
    lambda_bar = torch.polar(torch.full((1, 3), 1.0, dtype=torch.float64), torch.tensor([[0.1, 2.0, 3.1]], dtype=torch.float64))
    c = torch.ones(1, 3, dtype=torch.complex128)
    error = mode_kernel(lambda_bar, c.to(torch.complex64), 16_384).double() - mode_kernel(lambda_bar, c, 16_384)
    assert error.abs().max().item() < 1e-4


@pytest.mark.parametrize("length", [1, 2, 7, 20])
@pytest.mark.slow
def test_gradients_are_exact(length: int) -> None:
    lambda_bar, c = (x.requires_grad_() for x in modes(2, 3))
    assert torch.autograd.gradcheck(lambda a, b: mode_kernel(a, b, length), (lambda_bar, c))
    assert torch.autograd.gradgradcheck(lambda a, b: mode_kernel(a, b, length), (lambda_bar, c))


@pytest.mark.parametrize("length", [1, 2, 5, 16, 33])
def test_final_states_match_the_recurrence(length: int) -> None:
    lambda_bar, _ = modes()
    x = torch.randn(2, length, 3, dtype=torch.float64)
    h = torch.zeros(2, 3, 4, dtype=torch.complex128)
    for t in range(length):
        h = lambda_bar * h + x[:, t, :, None]
    torch.testing.assert_close(final_states(lambda_bar, x), h, rtol=1e-11, atol=1e-11)
