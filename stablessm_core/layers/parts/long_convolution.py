"""Causal convolutions over time whose kernels are as long as the sequences.

On a CPU, C code computes every product of sequences of up to DIRECT_LENGTH steps, because this takes less time than Fourier
transforms. Longer sequences and other devices use Fourier transforms.

A transform's rounding errors are relative to the largest sum of all steps. So if a kernel grows, as the kernel of an unstable
eigenvalue does, the sums of the early steps are lost in these errors: if it grows by e^0.2 per step, float32 has no correct digit
in most of 196 steps. Therefore the C code also computes kernels of any length that grow. There every sum has its own rounding
errors, and a NaN or an infinity never reaches earlier steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from stablessm_core.kernels import library
from stablessm_core.numerics.differentiation import transformed
from stablessm_core.scan import resolve_backend
from stablessm_core.scan.autograd import is_unobserved

# up to this length, all products take less time than Fourier transforms (benchmarks/convolution.py); by instruction set
DIRECT_LENGTH = {"v2": 192, "v3": 384, "v4": 384, "v8": 192}
GROWTH = 1e3  # a kernel grows if its largest number is more than GROWTH times the largest number of its first quarter
KINDS = {torch.float32: "f32", torch.float64: "f64"}


def long_convolution(x: Tensor, kernel: Tensor, skip: Tensor | None = None, *, backend: str = "auto") -> Tensor:
    """y_t = sum_{s <= t} kernel_s x_{t-s} + skip x_t in each channel.

    x (batch, length, channels), kernel (channels, length), skip (channels,), all real. The result is computed in the kernel's
    dtype, float32 or float64, even under autocast. Derivatives of any order are supported. backend: as in `linear_scan`; the C
    code runs only if this backend is "cpu".
    """
    with torch.autocast(x.device.type, enabled=False):
        if skip is not None:  # skip is added to the kernel, because the kernel is smaller than x
            kernel = torch.cat([kernel[:, :1] + skip[:, None], kernel[:, 1:]], dim=1)
        x = x.to(kernel.dtype)
        if transformed():
            return _convolved(x, kernel)
        way: Any = _DirectConvolution if _is_direct(x, kernel, backend) else _FourierConvolution
        y: Tensor = way.apply(x, kernel)
    return y


def _is_direct(x: Tensor, kernel: Tensor, backend: str) -> bool:
    if torch.compiler.is_compiling() or resolve_backend(backend, x.device) != "cpu" or not x.shape[1]:
        return False
    return x.shape[1] <= DIRECT_LENGTH[library.target()] or _grows(kernel)


def _grows(kernel: Tensor) -> bool:
    """True if the kernel of a channel grows, or is not finite."""
    if type(kernel) not in (Tensor, torch.nn.Parameter):
        return False  # a tensor without values, as in a trace
    sizes = np.abs(kernel.detach().numpy())
    early = sizes[:, : -(-sizes.shape[1] // 4)]
    return not (sizes.max(1, initial=0) <= GROWTH * early.max(1, initial=0)).all()


class _DirectConvolution(torch.autograd.Function):
    """`long_convolution` in C."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor) -> Tensor:
        ctx.save_for_backward(x, kernel)
        y: Tensor = (convolution if is_unobserved(x, kernel) else convolution_op)(x, kernel)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, kernel = ctx.saved_tensors
        if torch.is_grad_enabled() or transformed():
            return _differentiable_gradients(x, kernel, grad)
        needed = ctx.needs_input_grad[:2]
        gradients: Any = convolution_gradients if is_unobserved(x, kernel, grad) else convolution_gradients_op
        dx, dk = gradients(x, kernel, grad, *needed)
        return dx if needed[0] else None, dk if needed[1] else None


def convolution(x: Tensor, kernel: Tensor) -> Tensor:
    """y of `long_convolution`, computed in C."""
    x, k = _readable(x), _readable(kernel.t())
    y = torch.empty_like(x)
    library.call(f"stablessm_convolution_{KINDS[x.dtype]}", (*x.shape, *_addresses(k, x, y)), _work(x))
    return y


def convolution_gradients(x: Tensor, kernel: Tensor, grad: Tensor, need_dx: bool, need_dk: bool) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the kernel, computed in C. A gradient that is not needed has no elements."""
    x, k, grad = _readable(x), _readable(kernel.t()), _readable(grad)
    dx = torch.empty_like(x) if need_dx else x.new_empty(0)
    dk = torch.empty_like(k) if need_dk else k.new_empty(0, 0)
    numbers = *x.shape, *_addresses(k, x, grad), *(t.data_ptr() if t.numel() else 0 for t in (dx, dk))
    library.call(f"stablessm_convolution_gradients_{KINDS[x.dtype]}", numbers, 2 * _work(x))
    return dx, dk.t().contiguous()


# operators through which tools that observe PyTorch's operators see the C code
convolution_op = torch.library.custom_op("stablessm::convolution", convolution, mutates_args=())
convolution_gradients_op = torch.library.custom_op("stablessm::convolution_gradients", convolution_gradients, mutates_args=())


@convolution_op.register_fake
def _(x: Tensor, _kernel: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@convolution_gradients_op.register_fake
def _(x: Tensor, kernel: Tensor, _grad: Tensor, need_dx: bool, need_dk: bool) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape if need_dx else 0), kernel.new_empty(kernel.shape if need_dk else (0, 0))


def _readable(x: Tensor) -> Tensor:
    """x in the layout that C code expects."""
    return x.resolve_neg().contiguous()


def _addresses(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(t.data_ptr() for t in tensors)


def _work(x: Tensor) -> int:
    """The number of scan steps that take as long as the convolution. A step takes as long as about 32 of its products."""
    return x.numel() * x.shape[1] // 64


class _FourierConvolution(torch.autograd.Function):
    """`long_convolution` by Fourier transforms.

    The backward pass needs three real transforms, whereas the backward pass of autograd would use complex transforms.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor) -> Tensor:
        n = _transform_length(x)
        spectra = _spectrum(x.transpose(1, 2), n), _spectrum(kernel, n)
        ctx.save_for_backward(x, kernel, *spectra)
        return _inverse(spectra[0] * spectra[1], n, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """dx_t = sum_s kernel_s dy_{t+s} and dkernel_s = sum_t x_t dy_{t+s}: correlations of dy with the kernel and with x."""
        x, kernel, x_spectrum, kernel_spectrum = ctx.saved_tensors
        if torch.is_grad_enabled() or transformed():
            return _differentiable_gradients(x, kernel, grad)
        n = _transform_length(x)
        dx = dkernel = None
        spectrum = _spectrum(grad.transpose(1, 2), n)
        if ctx.needs_input_grad[1]:
            dkernel = torch.fft.irfft((spectrum * x_spectrum.conj()).sum(0), n)[..., : x.shape[1]]
        if ctx.needs_input_grad[0]:
            dx = _inverse(spectrum.mul_(kernel_spectrum.conj()), n, x)
        return dx, dkernel


def _transform_length(x: Tensor) -> int:
    """At least twice the length of x, so that the convolution does not wrap around."""
    return fast_length(2 * x.shape[1] - 1)


def _spectrum(x: Tensor, n: int) -> Tensor:
    """The spectrum of x (..., length), padded with zeros to length n. x is copied once, whatever its strides are."""
    room = x.new_zeros(*x.shape[:-1], n)
    room[..., : x.shape[-1]] = x
    spectrum: Tensor = torch.fft.rfft(room)
    return spectrum


def _inverse(spectrum: Tensor, n: int, x: Tensor) -> Tensor:
    """The sequences of a spectrum (batch, channels, frequencies), in the layout of x."""
    # copied, because reading the result step by step is slower if time is the last axis
    values: Tensor = torch.fft.irfft(spectrum, n)[..., : x.shape[1]].transpose(1, 2).contiguous()
    return values


def _convolved(x: Tensor, kernel: Tensor) -> Tensor:
    """`long_convolution` in operations that have derivatives of any order."""
    n = _transform_length(x)
    return _inverse(torch.fft.rfft(x.transpose(1, 2), n) * torch.fft.rfft(kernel, n), n, x)


def _differentiable_gradients(x: Tensor, kernel: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the kernel as functions of x, kernel and grad, for second derivatives."""
    later = grad.flip(1)
    n = _transform_length(x)
    products = torch.fft.rfft(later, n, dim=1) * torch.fft.rfft(x, n, dim=1)
    return _convolved(later, kernel).flip(1), torch.fft.irfft(products.sum(0), n, dim=0)[: x.shape[1]].flip(0).t()


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
