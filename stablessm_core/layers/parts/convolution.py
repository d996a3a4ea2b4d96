"""Causal convolutions over time: a short convolution with a few taps, used before recurrences, and a long one by FFT."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.numerics.differentiation import transformed


class ShortConvolution(nn.Module):
    """y_t = b + sum_k w_k x_{t-K+1+k} in each channel, with x = 0 before the first step. x and y are (batch, length, channels).

    Parameters: weight (channels, taps), where the last tap multiplies the current step, and bias (channels,) if `bias` is true.
    Initial values are those of `nn.Conv1d` with one group per channel: uniform in [-1/sqrt(taps), 1/sqrt(taps)].
    """

    def __init__(self, channels: int, taps: int, *, bias: bool = True) -> None:
        super().__init__()
        bound = taps**-0.5
        self.weight = nn.Parameter(torch.empty(channels, taps).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        channels, taps = self.weight.shape
        seen = transformed() or torch.compiler.is_compiling() or torch.is_autocast_enabled(x.device.type)
        if x.device.type == "cpu" and not seen:
            y: Tensor = _ShiftedSum.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
            return y
        padded = functional.pad(x.transpose(1, 2), (taps - 1, 0))
        return functional.conv1d(padded, self.weight[:, None], self.bias, groups=channels).transpose(1, 2)

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step: x_t (batch, channels), state (batch, taps - 1, channels), the previous inputs -> (y_t, next state)."""
        seen = torch.cat([state, x_t[:, None]], 1)
        y = torch.einsum("bkc,ck->bc", seen, self.weight)
        return y if self.bias is None else y + self.bias, seen[:, 1:]

    def initial_state(self, batch: int) -> Tensor:
        channels, taps = self.weight.shape
        return self.weight.new_zeros(batch, taps - 1, channels)


class _ShiftedSum(torch.autograd.Function):
    """The short convolution as one product per tap. On a CPU it takes a third of the time of PyTorch's convolution."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        taps = weight.t().contiguous()
        y = x * taps[-1] if bias is None else torch.addcmul(bias, taps[-1], x)
        for delay in range(1, min(len(taps), x.shape[1])):
            y[:, delay:].addcmul_(taps[-1 - delay], x[:, :-delay])
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        taps = weight.t().contiguous()
        dx = grad * taps[-1]
        d_taps = [(grad * x).sum((0, 1))]
        for delay in range(1, len(taps)):
            if delay < x.shape[1]:
                dx[:, :-delay].addcmul_(taps[-1 - delay], grad[:, delay:])
            d_taps.append((grad[:, delay:] * x[:, :-delay]).sum((0, 1)))
        return dx, torch.stack(d_taps[::-1], 1), grad.sum((0, 1)) if ctx.needs_input_grad[2] else None


def fft_convolution(x: Tensor, kernel: Tensor, skip: Tensor | None = None) -> Tensor:
    """y_t = sum_{s <= t} kernel_s x_{t-s} + skip x_t in each channel.

    x (batch, length, channels), kernel (channels, length), skip (channels,), all real. The result is computed in the kernel's
    dtype, float32 or float64, even under autocast. The transforms have at least twice the length of x, so the convolution does
    not wrap around. Derivatives of any order are supported.
    """
    with torch.autocast(x.device.type, enabled=False):
        if skip is not None:  # skip is added to the kernel, because the kernel is smaller than x
            kernel = torch.cat([kernel[:, :1] + skip[:, None], kernel[:, 1:]], dim=1)
        x = x.to(kernel.dtype).transpose(1, 2)
        y: Tensor = _convolved(x, kernel) if transformed() else _Convolution.apply(x, kernel)  # type: ignore[no-untyped-call]
    return y.transpose(1, 2).contiguous()  # copied, because reading y step by step is slower if time is the last axis


def _convolved(x: Tensor, kernel: Tensor) -> Tensor:
    n = fast_length(2 * x.shape[-1] - 1)
    y: Tensor = torch.fft.irfft(torch.fft.rfft(x, n) * torch.fft.rfft(kernel, n), n)
    return y[..., : x.shape[-1]]


class _Convolution(torch.autograd.Function):
    """`fft_convolution` for x (batch, channels, length).

    The backward pass needs three real transforms, whereas the backward pass of autograd would use complex transforms.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor) -> Tensor:
        n = fast_length(2 * x.shape[-1] - 1)
        spectra = _spectrum(x, n), _spectrum(kernel, n)
        ctx.save_for_backward(x, kernel, *spectra)
        y: Tensor = torch.fft.irfft(spectra[0] * spectra[1], n)
        return y[..., : x.shape[-1]]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """dx_t = sum_s kernel_s dy_{t+s} and dkernel_s = sum_t x_t dy_{t+s}: correlations of dy with the kernel and with x."""
        x, kernel, x_spectrum, kernel_spectrum = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives need operations on the inputs themselves, not on the saved spectra
            later = grad.flip(-1)
            return _convolved(later, kernel).flip(-1), _convolved(later, x).flip(-1).sum(0)
        length = x.shape[-1]
        n = fast_length(2 * length - 1)
        dx = dkernel = None
        spectrum = _spectrum(grad, n)
        if ctx.needs_input_grad[1]:
            dkernel = torch.fft.irfft((spectrum * x_spectrum.conj()).sum(0), n)[..., :length]
        if ctx.needs_input_grad[0]:
            dx = torch.fft.irfft(spectrum.mul_(kernel_spectrum.conj()), n)[..., :length]
        return dx, dkernel


def _spectrum(x: Tensor, n: int) -> Tensor:
    """The spectrum of x, padded with zeros to length n. x is copied once, whatever its strides are."""
    room = x.new_zeros(*x.shape[:-1], n)
    room[..., : x.shape[-1]] = x
    spectrum: Tensor = torch.fft.rfft(room)
    return spectrum


def fast_length(least: int) -> int:
    """The smallest even number >= `least` without prime factors above 5, because transforms with large prime factors are slow."""
    n = max(least + least % 2, 2)
    while _without_small_factors(n) != 1:
        n += 2
    return n


def _without_small_factors(n: int) -> int:
    for factor in (2, 3, 5):
        while n % factor == 0:
            n //= factor
    return n
