"""Discretization, which turns a continuous mode, real or complex, into one step of the recurrence.

Zero-order hold: dh/dt = lambda h + B x with x constant over a step dt gives h_t = e^{dt lambda} h_{t-1} + B_bar x_t with
B_bar = (e^{dt lambda} - 1)/lambda B. `Reparameterization.lambda_bar` computes e^{dt lambda} for a real eigenvalue. The bilinear
(trapezoidal) rule instead gives lambda_bar = (1 + z/2)/(1 - z/2) and B_bar = dt/(1 - z/2) B with z = dt lambda.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from stablessm_core.map import LARGEST_EXPONENT_32, LARGEST_EXPONENT_64, saturated_exp
from stablessm_core.numerics.differentiation import elementwise

Rule = Literal["zoh", "bilinear"]

# phi'(z) = sum_k (k + 1)/(k + 2)! z^k; for |z| < 0.1, ten terms are exact in float64
_SERIES = [1 / 2, 1 / 3, 1 / 8, 1 / 30, 1 / 144, 1 / 840, 1 / 5760, 1 / 45360, 1 / 403200, 1 / 3991680]
_SWITCH = 0.1


def input_gain(lambda_: Tensor, dt: Tensor) -> Tensor:
    """B_bar / B = (e^{dt lambda} - 1)/lambda, or dt in the limit lambda -> 0. It does not overflow for |dt lambda| < 1e38.

    lambda_: continuous eigenvalue, real or complex, of any shape. dt: step size > 0, real, broadcast to lambda_. Differentiable
    any number of times in lambda_ and dt. The result is accurate to a few ulp, even near lambda = 0 (for complex numbers: ulp
    of the absolute value).
    """
    return dt * elementwise(lambda_ * dt, _phi, _phi_slope)


def discretized(lambda_: Tensor, dt: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """(lambda_bar, B_bar / B) for complex eigenvalues lambda_ and the real step size dt, broadcast to lambda_."""
    if rule == "zoh":
        return _exp(dt * lambda_), input_gain(lambda_, dt)
    half = dt * lambda_ / 2
    return (1 + half) / (1 - half), dt / (1 - half)


def _exp(z: Tensor) -> Tensor:
    """e^z, with the real part of z limited so that the result does not overflow."""
    if not z.is_complex():
        return saturated_exp(z, torch)  # type: ignore[no-any-return]
    # the derivative is given, because PyTorch's derivative of polar divides by the absolute value, which may be subnormal
    return elementwise(z, lambda z: torch.polar(saturated_exp(z.real, torch), z.imag), lambda _, e: e)


def _phi(z: Tensor) -> Tensor:
    """(e^z - 1)/z."""
    if z.is_complex():
        limit = LARGEST_EXPONENT_32 if z.dtype == torch.complex64 else LARGEST_EXPONENT_64
        saturated = torch.complex(z.real.clamp(max=limit), z.imag)
    else:
        saturated = z.clamp(max=LARGEST_EXPONENT_32 if z.dtype == torch.float32 else LARGEST_EXPONENT_64)
    vanishing = z.abs() < torch.finfo(z.dtype).tiny  # the quotient of subnormal complex numbers is NaN
    return torch.where(vanishing, 1.0, torch.expm1(saturated) / torch.where(vanishing, 1.0, z))


def _phi_slope(z: Tensor, phi: Tensor) -> Tensor:
    """phi' = (e^z - phi)/z.

    For small |z|, which is the usual case, the series is used, because the quotient suffers from cancellation.
    """
    small = z.abs() < _SWITCH
    near = torch.where(small, z, 0.0)
    series = torch.full_like(z, _SERIES[-1])
    for coefficient in reversed(_SERIES[:-1]):
        series = series * near + coefficient
    far = (_exp(z) - phi) / torch.where(small, 1.0, z)
    return torch.where(small, series, far)
