"""S4's convolution kernel K_l = C A_bar^l B_bar for l < length, for channels with the state matrix A = Lambda - P P*.

Vectors store only one mode of each conjugate pair, complex (channels, modes). So a state h of N numbers is stored as N/2 complex
numbers, and its product with a row c is 2 Re sum c_n h_n. S4, arXiv 2111.00396: section 3.4, appendix C.3.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from stablessm_core.layers.parts.long_convolution import fast_length
from stablessm_core.layers.parts.modes import narrowed, wide, wide_complex

SHORTEST = 64  # minimum computed kernel length: in shorter kernels, I - A_bar^length cancels in float32; 64 steps are cheap


class System(NamedTuple):
    """dh/dt = (Lambda - P P*) h + B x, y = 2 Re(C h), with step size dt. Complex (channels, modes); dt: real (channels,)."""

    Lambda: Tensor
    P: Tensor
    B: Tensor
    C: Tensor
    dt: Tensor


class Step(NamedTuple):
    """One step of the bilinear rule, h_t = A_bar h_{t-1} + b x_t with A_bar h = d h - u 2 Re(v h).

    A_bar = (I - dt A/2)^{-1} (I + dt A/2) = 2 (I - dt A/2)^{-1} - I is diagonal plus rank one, by the Woodbury formula.
    d, u, v, b: complex (channels, modes).
    """

    d: Tensor
    u: Tensor
    v: Tensor
    b: Tensor

    def __call__(self, h: Tensor, x: Tensor) -> Tensor:
        """h_t from h_{t-1}, complex (..., channels, modes), and x_t, real (..., channels)."""
        return self.d * h - self.u * both(self.v, h)[..., None] + self.b * x[..., None]


def bilinear_step(system: System) -> Step:
    """The step, computed in float64 and rounded, because dt Lambda may overflow float32 although no result does."""
    Lambda, P, B, dt = *(wide_complex(x) for x in (system.Lambda, system.P, system.B)), wide(system.dt)[:, None]
    E = (1 - dt / 2 * Lambda).reciprocal()
    v = P.conj() * E
    u = dt * E * P / (1 + dt / 2 * both(v, P)[:, None])
    step = Step((1 + dt / 2 * Lambda) * E, u, v, dt * E * B - dt / 2 * u * both(v, B)[:, None])
    return Step(*(narrowed(x, system.Lambda.dtype) for x in step))


def both(c: Tensor, h: Tensor) -> Tensor:
    """The product of a row with a state, over both modes of each pair: 2 Re sum_n c_n h_n, real."""
    return 2 * (c.real * h.real - c.imag * h.imag).sum(-1)


def real_matrix(d: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """The matrix of h -> d h - u 2 Re(v h) acting on (Re h, Im h): real (channels, N, N)."""
    re, im = torch.diag_embed(d.real), torch.diag_embed(d.imag)
    diagonal = torch.cat([torch.cat([re, -im], -1), torch.cat([im, re], -1)], -2)
    return diagonal - _column(u) * _row(v)


def kernel_by_cauchy(system: System, length: int) -> Tensor:
    """The kernel, real (channels, length), from its truncated generating function at roots of unity (the paper's algorithm 1).

    K^(z) = sum_{l<n} K_l z^l = (2/(1+z)) [k_CB - k_CP k_PB / (1 + k_PP)] with k_xy = sum x_n y_n / (g - lambda_n) over all modes,
    g = (2/dt) (1-z)/(1+z), and C (I - A_bar^n) instead of C. At z = e^{-i theta}, 1 - z and 1 + z have the common factor
    2 e^{-i theta/2}. Let c = cos(theta/2), s = sin(theta/2). Without that factor, (2/(1+z)) k_xy = dt/2 e^{i theta/2} S_xy with
    S_xy = sum x_n y_n / (i s - dt/2 c lambda_n), which is also finite at z = -1.

    Accurate only for Re Lambda < 0. Otherwise A_bar^n grows, and the large terms no longer cancel. For example, with
    Re Lambda = 1/2, 64 states and dt = 0.01, the kernel is still small, but its relative error is 0.1 in float32 and 0.01 in
    float64.
    """
    Lambda, P, B, C, dt = system
    dt = dt.clamp(min=torch.finfo(dt.dtype).eps ** 2)  # otherwise S_xy overflows; so small a dt makes no difference
    n = fast_length(max(length, SHORTEST))
    row = _row(C)
    row = (row - _times_power(row, real_matrix(*bilinear_step(system)[:3]), n))[:, 0]
    real, imag = row.chunk(2, -1)
    truncated = torch.complex(real, -imag) / 2  # vmap does not support the derivative of a lazily conjugated torch.complex
    half = math.pi / n * torch.arange(n // 2 + 1, dtype=torch.float64, device=dt.device)
    c, s = half.cos().to(dt.dtype), half.sin().to(dt.dtype)
    scaled = dt[:, None] / 2 * Lambda
    poles = torch.cat([scaled, scaled.conj()], -1)[..., None]
    table = torch.complex(-poles.real * c, s - poles.imag * c).reciprocal()  # (channels, N, nodes)
    products = torch.stack([truncated * B, truncated * P, P.conj() * B, P.conj() * P], 1)
    S_CB, S_CP, S_PB, S_PP = (torch.cat([products, products.conj()], -1) @ table).unbind(1)
    w = dt[:, None] / 2 * c
    transformed = dt[:, None] / 2 * torch.complex(c, s) * (S_CB - w * S_CP * S_PB / (1 + w * S_PP))
    kernel: Tensor = torch.fft.irfft(transformed, n)[:, :length]
    return kernel


def kernel_by_powers(system: System, length: int) -> Tensor:
    """The kernel, computed by products of dense matrices, K_{Qi+j} = (C A_bar^{Qi}) (A_bar^j b) with Q about sqrt(length).

    Accurate for all eigenvalues, because no large terms have to cancel.
    """
    columns, power = _columns(bilinear_step(system), length)
    span, rows = columns.shape[-1], _row(system.C)
    while rows.shape[1] * span < length:
        rows = torch.cat([rows, rows @ power], 1)
        if rows.shape[1] * span < length:
            power = power @ power
    return (rows @ columns).flatten(1)[:, :length]


@torch.no_grad()
def final_state(step: Step, x: Tensor) -> Tensor:
    """h after the last step from h_0 = 0, complex (batch, channels, modes); x: real (batch, length, channels)."""
    batch, length, channels = x.shape
    columns, power = _columns(step, length)
    span = columns.shape[-1]
    pieces = -(-length // span)
    padded = torch.nn.functional.pad(x.permute(2, 0, 1), (pieces * span - length, 0))
    driven = padded.reshape(channels, batch * pieces, span) @ columns.flip(-1).transpose(1, 2)
    driven = driven.view(channels, batch, pieces, -1)
    h, back = driven[:, :, 0], power.transpose(1, 2)
    for piece in range(1, pieces):
        h = h @ back + driven[:, :, piece]
    return torch.complex(*h.transpose(0, 1).chunk(2, -1))


def _column(h: Tensor) -> Tensor:
    """(Re h, Im h), (channels, N, 1)."""
    return torch.cat([h.real, h.imag], -1)[..., None]


def _row(c: Tensor) -> Tensor:
    """2 (Re c, -Im c), (channels, 1, N): its product with `_column` is `both`."""
    return 2 * torch.cat([c.real, -c.imag], -1)[..., None, :]


def _columns(step: Step, length: int) -> tuple[Tensor, Tensor]:
    """A_bar^j b for j < Q, (channels, N, Q), and A_bar^Q. Q is the smallest power of two that is at least sqrt(length)."""
    columns, power = _column(step.b), real_matrix(*step[:3])
    while columns.shape[-1] ** 2 < length:
        columns = torch.cat([columns, power @ columns], -1)
        power = power @ power
    return columns, power


def _times_power(row: Tensor, matrix: Tensor, n: int) -> Tensor:
    """row times matrix^n, by repeated squaring."""
    while True:
        if n % 2:
            row = row @ matrix
        n //= 2
        if not n:
            return row
        matrix = matrix @ matrix
