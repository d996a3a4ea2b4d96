"""Textbook forms of h_t = a_t h_{t-1} + b_t on a CPU, for comparison with our scan in `benchmarks.scan`. Also the floor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module, util
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from stablessm_core.scan import linear_scan

Form = Callable[[Tensor, Tensor], Tensor]
CHUNK = 32
LONGEST = 4096


def alternatives(lti: bool, length: int) -> dict[str, Form]:
    """mambapy's scan, if mambapy is installed, and textbook scans. Forms that are far too slow at this length are left out."""
    found: dict[str, Form] = {"mambapy pscan": mambapy} if util.find_spec("mambapy") and not lti else {}
    if length > LONGEST:
        return found
    if lti:
        found |= {"FFT convolution": fft_convolution, "chunked matmul": chunked_matmul}
    return found | {"logarithmic depth (doubling)": doubling, "reference (loop)": partial(linear_scan, backend="reference")}


def mambapy(a: Tensor, b: Tensor) -> Tensor:
    """mambapy's scan. Its arguments have the shape (batch, length, d_inner, d_state). It has no form for a constant a."""
    h: Tensor = import_module("mambapy.pscan").pscan(a.unsqueeze(-1), b.unsqueeze(-1))
    return h.squeeze(-1)


def fft_convolution(a: Tensor, b: Tensor) -> Tensor:
    """h = b * (1, a, a^2, …) by zero-padded real FFTs along a contiguous time axis."""
    length = b.shape[1]
    kernel = a[:, None] ** torch.arange(length, dtype=a.dtype)
    spectrum = torch.fft.rfft(b.transpose(1, 2).contiguous(), n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
    return torch.fft.irfft(spectrum, n=2 * length)[..., :length].transpose(1, 2).contiguous()


def chunked_matmul(a: Tensor, b: Tensor) -> Tensor:
    """The scan by matrix products: one triangular Toeplitz matrix per eigenvalue within the chunks, and a second one between
    the chunks. The cost is quadratic in the number of chunks."""
    batch, length, d_state = b.shape
    chunks = -(-length // CHUNK)
    x = pad(b, (0, 0, 0, chunks * CHUNK - length)).view(batch, chunks, CHUNK, d_state)
    x = x.permute(3, 2, 0, 1).reshape(d_state, CHUNK, batch * chunks)
    local = (toeplitz(a, CHUNK) @ x).view(d_state, CHUNK, batch, chunks)
    ends = pad(local[:, -1, :, :-1], (1, 0))
    carry = ends @ toeplitz(a**CHUNK, chunks).transpose(1, 2)
    h = local + (a[:, None] ** torch.arange(1, CHUNK + 1))[:, :, None, None] * carry[:, None]
    return h.permute(2, 3, 1, 0).reshape(batch, chunks * CHUNK, d_state)[:, :length]


def toeplitz(a: Tensor, size: int) -> Tensor:
    exponent = torch.arange(size)[:, None] - torch.arange(size)
    return torch.where(exponent >= 0, a[:, None, None] ** exponent.clamp(min=0), 0.0)


def doubling(a: Tensor, b: Tensor) -> Tensor:
    """The parallel scan of Hillis and Steele: after step k every value covers 2^k inputs."""
    a, h, span = a.expand(b.shape), b, 1
    while span < b.shape[1]:
        h = torch.cat([h[:, :span], h[:, span:] + a[:, span:] * h[:, :-span]], dim=1)
        a = torch.cat([a[:, :span], a[:, span:] * a[:, :-span]], dim=1)
        span *= 2
    return h


def floor(a: Tensor, b: Tensor, grad: Tensor) -> tuple[Callable[[], object], Callable[[], object]]:
    """Elementwise operations that move as many bytes as the scan, into memory that is allocated in advance. Returns the calls
    for forward and for forward + backward.

    Forward: (a), b -> h. Backward: (a), h, dL/dh -> db, (da).
    """
    h, db, da = torch.empty_like(b), torch.empty_like(b), torch.empty_like(b)
    factor: Any = 1.5 if a.dim() == 1 else a

    def forward() -> None:
        torch.mul(b, factor, out=h)

    def both() -> None:
        forward()
        if a.dim() == 1:
            torch.addcmul(grad, h, grad, out=db)
        else:
            torch.addcmul(grad, a, h, out=db)
            torch.mul(h, 1.5, out=da)

    return forward, both
