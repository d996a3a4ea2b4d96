"""Other ways to compute h_t = a_t h_{t-1} + b_t, for `benchmarks.scan`: textbook forms, and the floor, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from stablessm_core.scan import linear_scan

Form = Callable[[Tensor, Tensor], Tensor]
CHUNK = 32


def alternatives(lti: bool) -> dict[str, Form]:
    forms: dict[str, Form] = {"FFT convolution": fft_convolution, "chunked matmul": chunked_matmul} if lti else {}
    return forms | {"logarithmic depth (doubling)": doubling, "reference (loop)": partial(linear_scan, backend="reference")}


def fft_convolution(a: Tensor, b: Tensor) -> Tensor:
    """h = b * (1, a, a^2, …) by zero-padded real FFTs along a contiguous time axis."""
    length = b.shape[1]
    kernel = a[:, None] ** torch.arange(length, dtype=a.dtype)
    spectrum = torch.fft.rfft(b.transpose(1, 2).contiguous(), n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
    return torch.fft.irfft(spectrum, n=2 * length)[..., :length].transpose(1, 2).contiguous()


def chunked_matmul(a: Tensor, b: Tensor) -> Tensor:
    """A triangular Toeplitz matrix per eigenvalue within chunks, a second one (quadratic in the chunks) between them."""
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
    """Hillis and Steele: after step k every value covers 2^k inputs."""
    a, h, span = a.expand(b.shape), b, 1
    while span < b.shape[1]:
        h = torch.cat([h[:, :span], h[:, span:] + a[:, span:] * h[:, :-span]], dim=1)
        a = torch.cat([a[:, :span], a[:, span:] * a[:, :-span]], dim=1)
        span *= 2
    return h


def floor(a: Tensor, b: Tensor) -> tuple[Callable[[], object], Callable[[], object]]:
    """Elementwise work that moves the scan's bytes into memory already there.

    Forward: (a), b -> h. Backward: (a), h, dL/dh -> (da), db.
    """
    h, db, da = torch.empty_like(b), torch.empty_like(b), torch.empty_like(a)

    def forward() -> None:
        torch.mul(b, a, out=h)

    def both() -> None:
        forward()
        if a.dim() == 1:
            torch.mul(b, h, out=db)
        else:
            torch.addcmul(b, a, h, out=db)
            da.zero_()

    return forward, both
